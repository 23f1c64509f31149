// Calls the recommender over Connect's JSON.

const SERVICE = "citewell.recommender.v1.RecommenderService";
const BROKEN = "the connection broke off before the last answer";
let token = "";

/** What the service said instead of an answer; `code` is Connect's, such as "not_found". */
export class ServiceError extends Error {
  constructor({ message, code } = {}, status = 200) {
    super(message || code || `the service answered ${status}; try again in a moment`);
    this.code = code;
  }
}

/** The bearer token that all further calls send. It is kept in memory only. */
export function useToken(given) {
  token = given.trim();
}

/** Turns a failed fetch, which every browser words differently, into a ServiceError. Other errors pass. */
const failedAs = (message) => (error) => {
  throw error instanceof TypeError ? new ServiceError({ message }) : error;
};
const unreachable = failedAs("the service cannot be reached; is it running?");
const broken = failedAs(BROKEN);

function headers(type, milliseconds) {
  const authorization = token ? { authorization: `Bearer ${token}` } : {};
  return { "content-type": type, "connect-timeout-ms": String(milliseconds), ...authorization };
}

/** One answer, or a ServiceError. */
export async function call(method, request) {
  const response = await fetch(`/${SERVICE}/${method}`, {
    method: "POST",
    headers: headers("application/json", 60_000),
    body: JSON.stringify(request),
  }).catch(unreachable);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new ServiceError(answer, response.status);
  return answer;
}

/** Each answer of a streaming method, as it arrives. */
export async function* stream(method, request, signal) {
  const body = new TextEncoder().encode(JSON.stringify(request));
  const framed = new Uint8Array(body.length + 5);
  new DataView(framed.buffer).setUint32(1, body.length);
  framed.set(body, 5);
  const response = await fetch(`/${SERVICE}/${method}`, {
    method: "POST",
    headers: { ...headers("application/connect+json", 600_000), "connect-protocol-version": "1" },
    body: framed,
    signal,
  }).catch(unreachable);
  if (!response.ok) throw new ServiceError(await response.json().catch(() => ({})), response.status);
  const reader = response.body.getReader();
  let held = new Uint8Array(0);
  for (;;) {
    const { done, value } = await reader.read().catch(broken);
    if (done) throw new ServiceError({ message: BROKEN });
    const joined = new Uint8Array(held.length + value.length);
    joined.set(held);
    joined.set(value, held.length);
    held = joined;
    while (held.length >= 5) {
      const size = new DataView(held.buffer, held.byteOffset).getUint32(1);
      if (held.length < 5 + size) break;
      const message = JSON.parse(new TextDecoder().decode(held.subarray(5, 5 + size)) || "{}");
      const last = held[0] & 2;
      held = held.slice(5 + size);
      if (!last) {
        yield message;
      } else if (message.error) {
        throw new ServiceError(message.error);
      } else {
        return;
      }
    }
  }
}
