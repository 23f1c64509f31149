/* Keeps a copy of what a process has synced: the contents that would be left after a power cut.

   Loaded with LD_PRELOAD. For every fsync, fdatasync and msync of a file below $SYNCED_ROOT, the synced range is
   copied to $SYNCED_COPIES/<inode>-<birth time>. power_cut.py builds a folder from these copies. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int below_root(const char *path) {
    const char *root = getenv("SYNCED_ROOT");
    return root && strncmp(path, root, strlen(root)) == 0;
}

/* The copy of an open file, or -1 where it is no regular file. */
static int open_copy(int file) {
    struct statx found;
    if (statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &found) || !S_ISREG(found.stx_mode)) return -1;
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/%llu-%lld-%u", getenv("SYNCED_COPIES"), (unsigned long long)found.stx_ino,
             (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    int copy = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (copy >= 0 && ftruncate(copy, (off_t)found.stx_size)) perror("synced.c: ftruncate");
    return copy;
}

static void copy_range(int file, int copy, off_t start, off_t end) {
    static char buffer[1 << 16];
    for (off_t at = start; at < end;) {
        size_t wanted = (size_t)(end - at) < sizeof buffer ? (size_t)(end - at) : sizeof buffer;
        ssize_t got = pread(file, buffer, wanted, at);
        if (got <= 0) break;
        if (pwrite(copy, buffer, (size_t)got, at) != got) perror("synced.c: pwrite");
        at += got;
    }
}

/* A whole file: holes stay holes, since preallocated files are mostly empty. */
static void copy_file(int synced) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", synced);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (!below_root(path)) return;
    int file = open(link, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    pthread_mutex_lock(&lock);
    int copy = open_copy(file);
    if (copy >= 0) {
        off_t at = 0;
        while ((at = lseek(file, at, SEEK_DATA)) >= 0) {
            off_t end = lseek(file, at, SEEK_HOLE);
            copy_range(file, copy, at, end);
            at = end;
        }
        close(copy);
    }
    pthread_mutex_unlock(&lock);
    close(file);
}

static void copy_mapped(unsigned long start, unsigned long end) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return;
    char line[PATH_MAX + 128], path[PATH_MAX];
    while (fgets(line, sizeof line, maps)) {
        unsigned long first, last, offset;
        path[0] = 0;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095[^\n]", &first, &last, &offset, path) < 4) continue;
        if (last <= start || first >= end || !below_root(path)) continue;
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        unsigned long from = start > first ? start : first, to = end < last ? end : last;
        pthread_mutex_lock(&lock);
        int copy = open_copy(file);
        if (copy >= 0) {
            copy_range(file, copy, (off_t)(offset + from - first), (off_t)(offset + to - first));
            close(copy);
        }
        pthread_mutex_unlock(&lock);
        close(file);
    }
    fclose(maps);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    int result = real(file);
    if (!result) copy_file(file);
    return result;
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
    int result = real(file);
    if (!result) copy_file(file);
    return result;
}

int msync(void *address, size_t length, int flags) {
    static int (*real)(void *, size_t, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "msync");
    int result = real(address, length, flags);
    if (!result && (flags & MS_SYNC)) copy_mapped((unsigned long)address, (unsigned long)address + length);
    return result;
}
