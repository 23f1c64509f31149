#!/usr/bin/env bash
# Collects the CRDs of every operator that k8s/ uses into the folder given: out of the operators' Go modules, and, for
# Strimzi, generated from its Java model. Needs Go, Java 17 and Maven.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd) # Maven would take a relative path as below its own folder
go_files() { # module@version, pattern
    local folder
    folder=$(GOFLAGS=-mod=mod GOTOOLCHAIN=local go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    install -m 644 -t "$out" "$folder"/$2
}
go_files github.com/kedacore/keda/v2@v2.17.2 'config/crd/bases/keda.sh_*.yaml'
go_files github.com/prometheus-operator/prometheus-operator@v0.85.0 'example/prometheus-operator-crd/monitoring.coreos.com_p*.yaml'
go_files sigs.k8s.io/gateway-api@v1.4.0 'config/crd/standard/gateway.networking.k8s.io_*.yaml'
go_files github.com/cert-manager/cert-manager@v1.18.2 'deploy/crds/crd-*.yaml'
mvn -q -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$out/libs"
model=io.strimzi.api.kafka.model
java -cp "$out/libs/*" io.fabric8.crd.generator.cli.CRDGeneratorCLI -o "$out" \
    $model.kafka.Kafka $model.nodepool.KafkaNodePool $model.user.KafkaUser $model.topic.KafkaTopic >/dev/null
for kind in kafkas kafkanodepools kafkausers kafkatopics; do
    mv "$out/$kind.kafka.strimzi.io-v1.yml" "$out/strimzi-$kind.yaml"
done
rm -r "$out/libs"
