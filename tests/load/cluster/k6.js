// Offers queries, batches and publications at constant rates with k6 (https://k6.io), to services that run already:
//
//   k6 run -e ADDRESS=recommender:7300 -e INGESTION=ingestion:7304 -e RATE=50 -e DURATION=30m tests/load/cluster/k6.js
//
// The executor constant-arrival-rate sends requests whether or not earlier ones were answered. A refusal
// (RESOURCE_EXHAUSTED) is counted apart: an overloaded service is expected to refuse, and to say when to come again.
import grpc from "k6/net/grpc";
import { check } from "k6";
import { Counter, Trend } from "k6/metrics";

const address = __ENV.ADDRESS || "127.0.0.1:7300";
const ingestion = __ENV.INGESTION || "";
const rate = Number(__ENV.RATE || 10);
const duration = __ENV.DURATION || "30s";
const plaintext = (__ENV.TLS || "false") !== "true";
const metadata = __ENV.TOKEN ? { authorization: `Bearer ${__ENV.TOKEN}` } : {};
const contexts = __ENV.QUERIES
  ? open(__ENV.QUERIES).split("\n").filter((line) => line.trim())
  : ["Sparse retrieval was studied by TARGETCIT before."];

const refused = new Counter("citewell_refused");
const failed = new Counter("citewell_failed");
const answered = new Trend("citewell_answered", true);
const client = new grpc.Client();
client.load(["../../../protos"], "citewell/recommender/v1/recommender.proto", "citewell/ingestion/v1/ingestion.proto");

function arrivals(share, exec) {
  const perMinute = Math.max(1, Math.round(60 * rate * share));
  return {
    executor: "constant-arrival-rate", exec, rate: perMinute, timeUnit: "1m", duration,
    preAllocatedVUs: Math.max(10, Math.ceil(rate)), maxVUs: Math.max(100, Math.ceil(20 * rate)),
  };
}

export const options = {
  scenarios: {
    retrieval: arrivals(0.3, "retrieval"),
    reranked: arrivals(0.55, "reranked"),
    batch: arrivals(0.05, "batch"),
    ...(ingestion ? { publish: arrivals(0.1, "publish") } : {}),
  },
  summaryTrendStats: ["med", "p(95)", "p(99)", "p(99.9)", "max"],
  thresholds: { citewell_failed: ["count==0"] },
};

function ask(to, method, request) {
  if (__ITER === 0) client.connect(to, { plaintext });
  const started = Date.now();
  const response = client.invoke(method, request, { metadata, timeout: "5s" });
  if (response.status === grpc.StatusOK) answered.add(Date.now() - started);
  else if (response.status === grpc.StatusResourceExhausted) refused.add(1);
  else failed.add(1);
  check(response, { "answered or refused": (r) => r.status === grpc.StatusOK || r.status === grpc.StatusResourceExhausted });
}

const query = () => ({ context: contexts[Math.floor(Math.random() * contexts.length)] });
const recommend = (rerank) => ({ query: query(), options: { rerank } });
const service = "citewell.recommender.v1.RecommenderService";

export const retrieval = () => ask(address, `${service}/Recommend`, recommend(false));
export const reranked = () => ask(address, `${service}/Recommend`, recommend(true));
export const batch = () =>
  ask(address, `${service}/RecommendBatch`, { requests: Array.from({ length: 8 }, () => recommend(false)) });

export function publish() {
  const name = `load-${__VU}-${__ITER}`;
  const publication = { paper_id: name, revision: 1, title: `A paper of the load test ${name}` };
  ask(ingestion, "citewell.ingestion.v1.IngestionService/Publish", { publication, request_id: name });
}
