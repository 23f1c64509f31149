// A TypeScript back end that asks and publishes: deadlines, error details, batches, reading its own writes, retries, TLS.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { ChannelCredentials, ClientError, Metadata, Status, createChannel, createClientFactory } from "nice-grpc";
import { DeadlineOptions, deadlineMiddleware } from "nice-grpc-client-middleware-deadline";
import { BadRequest, ErrorInfo, RetryInfo, RichClientError, errorDetailsClientMiddleware } from "nice-grpc-error-details";

import { IngestionServiceDefinition, PublicationState } from "../gen/citewell/ingestion/v1/ingestion";
import { RecommenderServiceClient, RecommenderServiceDefinition } from "../gen/citewell/recommender/v1/recommender";

const sentence = "We follow TARGETCIT for the recommendation of local citations.";
const clients = createClientFactory().use(errorDetailsClientMiddleware).use(deadlineMiddleware);

function given(name: string): string {
  const value = process.env[name];
  assert(value, `${name} is not set`);
  return value;
}

function open(name: string, credentials = ChannelCredentials.createInsecure()) {
  return createChannel(given(name), credentials, {
    "grpc.service_config": readFileSync(given("CITEWELL_SERVICE_CONFIG"), "utf8"),
  });
}

type Recommender = RecommenderServiceClient<DeadlineOptions>;

function recommender(name: string): Recommender {
  return clients.create(RecommenderServiceDefinition, open(name));
}

const within = (seconds: number) => ({ deadline: new Date(Date.now() + seconds * 1000) });

const ask = (context: string) => ({ query: { context } });

/** The error of a call that must fail. */
async function refused(call: Promise<unknown>): Promise<ClientError> {
  const error = await call.then(
    () => undefined,
    (error: unknown) => error,
  );
  assert(error instanceof ClientError, `a refusal, not ${error}`);
  return error;
}

/** What a program reads of an error instead of its text. */
function detailsOf(error: ClientError): { reason?: string; field?: string; retrySeconds?: number } {
  const details = error instanceof RichClientError ? error.extra : [];
  const told: { reason?: string; field?: string; retrySeconds?: number } = {};
  for (const detail of details) {
    if (detail.$type === ErrorInfo.$type) told.reason = (detail as ErrorInfo).reason;
    if (detail.$type === BadRequest.$type) told.field = (detail as BadRequest).fieldViolations[0].field;
    if (detail.$type === RetryInfo.$type) {
      const delay = (detail as RetryInfo).retryDelay;
      told.retrySeconds = Number(delay?.seconds ?? 0) + (delay?.nanos ?? 0) / 1e9;
    }
  }
  return told;
}

/** Sends calls at once to a server that takes one; the times that refusals name. */
async function flood(busy: Recommender): Promise<number[]> {
  const calls = Array.from({ length: 16 }, () => busy.recommend(ask(sentence), within(30)));
  const ended = await Promise.allSettled(calls);
  return ended
    .flatMap((end) => (end.status === "rejected" && end.reason instanceof ClientError ? [end.reason] : []))
    .filter((error) => error.code === Status.RESOURCE_EXHAUSTED)
    .map((error) => detailsOf(error).retrySeconds ?? 0);
}

/** Publishes a paper; an answer with its token has it. */
async function publish(service: Recommender): Promise<void> {
  const log = clients.create(IngestionServiceDefinition, open("CITEWELL_INGESTION"));
  const publication = {
    paperId: "typescript-client-paper",
    revision: 1n,
    title: "Otters that type beside citation streams",
    published: { year: 2024, month: 2 },
  };
  const { token } = await log.publish({ publication }, within(30));
  const { state } = await log.getPublicationStatus({ token, wait: true }, within(60));
  assert.equal(state, PublicationState.PUBLICATION_STATE_SEARCHABLE);
  const query = { context: "Otters type beside citation streams TARGETCIT." };
  const answer = await service.recommend({ query, options: { minWatermark: [token] } }, within(30));
  assert.equal(answer.items[0].paper?.id, publication.paperId);
}

async function main(): Promise<void> {
  const service = recommender("CITEWELL_RECOMMENDER");

  const answer = await service.recommend(ask(sentence), within(30));
  const again = await service.recommend(ask(sentence), within(30));
  assert.equal(answer.items.length, 10);
  assert.equal(answer.items[0].paper?.id, again.items[0].paper?.id);
  console.log("ok recommend");

  assert.equal((await refused(service.recommend(ask(sentence), within(0.001)))).code, Status.DEADLINE_EXCEEDED);
  console.log("ok deadline");

  const wrong = await refused(service.recommend(ask("A sentence without a marker."), within(30)));
  assert.equal(wrong.code, Status.INVALID_ARGUMENT);
  assert.deepEqual(detailsOf(wrong), { reason: "MARKER_COUNT", field: "query.context" });
  console.log("ok error details");

  const batch = await service.recommendBatch({ requests: [ask(sentence), ask("No marker.")] }, within(30));
  assert.equal(batch.results[0].response?.items.length, 10);
  assert.equal(batch.results[1].error?.reason, "MARKER_COUNT");
  console.log("ok batch");

  const delays = await flood(recommender("CITEWELL_BUSY"));
  assert(delays.length > 0 && delays.every((seconds) => seconds > 0), `RetryInfo with each refusal: ${delays}`);
  console.log("ok retry info");

  await publish(service);
  console.log("ok read your writes");

  await recommender("CITEWELL_REFUSING").recommend(ask(sentence), within(30));
  console.log("ok retry config");

  const trusted = ChannelCredentials.createSsl(readFileSync(given("CITEWELL_CA")));
  const secure = clients.create(RecommenderServiceDefinition, open("CITEWELL_SECURE", trusted), {
    "*": { metadata: Metadata({ authorization: `Bearer ${given("CITEWELL_TOKEN")}` }) },
  });
  await secure.recommend(ask(sentence), within(30));
  console.log("ok tls and token");
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
