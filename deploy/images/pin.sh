#!/usr/bin/env bash
# Pushes the images of a version to a registry and writes their digests into k8s/overlays/production/images:
#   deploy/images/pin.sh registry.example/citewell 0.1.0
set -euo pipefail
registry=${1:?usage: pin.sh REGISTRY VERSION} version=${2:?usage: pin.sh REGISTRY VERSION}
cd "$(dirname "$0")/../.."
file=k8s/overlays/production/images/kustomization.yaml
{
    echo "# Where our images are. Written by deploy/images/pin.sh $registry $version."
    echo "apiVersion: kustomize.config.k8s.io/v1alpha1"
    echo "kind: Component"
    echo "images:"
    for name in recommender profiler index reranker ingestion edge tools triton; do
        image="$registry/citewell-$name"
        docker tag "citewell-$name:$version" "$image:$version" >&2
        docker push "$image:$version" >&2
        digest=$(docker image inspect --format '{{index .RepoDigests 0}}' "$image:$version")
        echo "  - {name: citewell-$name, newName: $image, digest: ${digest#*@}}"
    done
} >"$file.new"
mv "$file.new" "$file"
