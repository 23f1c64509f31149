"""Word documents that tests write by hand."""

from __future__ import annotations

import io
import zipfile

import docx


def word_file(body: str, declared: str = "") -> bytes:
    """A Word document with this XML in its body."""
    plain, written = io.BytesIO(), io.BytesIO()
    docx.Document().save(plain)
    with zipfile.ZipFile(plain) as before, zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            part = before.read(name).decode("utf-8", "surrogateescape")
            if name == "word/document.xml":
                part = part.replace("?>", f"?>{declared}", 1).replace("<w:sectPr", f"{body}<w:sectPr", 1)
            after.writestr(name, part.encode("utf-8", "surrogateescape"))
    return written.getvalue()
