// A worker in JavaScript, without any package: the contract of docs/worker-image.md.
//
//   warmpool worker check --command node examples/worker.mjs
import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const env = process.env;
const key = Buffer.from(readFileSync(env.WARMPOOL_KEY_FILE, "ascii").trim(), "hex");
const graceMs = Number(env.WARMPOOL_GRACE_S ?? 600) * 1000;

let holder = null; // the claim with the highest epoch so far
let sessionOpen = false;
let inProgress = 0;
let draining = false;

// Return [status, holder]: the first two rules of the contract, then the third.
function enter(headers) {
  const [scheme, token] = (headers.authorization ?? "").split(" ");
  const claim = headers["x-warmpool-claim"] ?? "";
  const digits = headers["x-warmpool-epoch"] ?? "";
  if (scheme !== "Bearer" || !claim || !/^[0-9]{1,19}$/.test(digits)) return [401, null];
  const right = createHmac("sha256", key).update(`${claim}|${digits}`).digest("hex");
  const given = Buffer.from(token ?? "");
  if (given.length !== right.length || !timingSafeEqual(given, Buffer.from(right))) return [401, null];
  const epoch = BigInt(digits);
  if (holder === null || epoch > holder.epoch) {
    holder = { claim, epoch };
    sessionOpen = false;
  }
  if (epoch !== holder.epoch || claim !== holder.claim) return [409, null];
  if (draining && !sessionOpen) return [503, null];
  return [200, holder];
}

function answer(response, status, content) {
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(content));
}

const server = createServer((request, response) => {
  const path = request.url.split("?")[0];
  if (request.method === "GET" && path === "/healthz") {
    return answer(response, draining ? 503 : 200, { draining });
  }
  if (request.method === "GET" && path === "/sessions") {
    return answer(response, 200, { open: inProgress + (sessionOpen ? 1 : 0), draining });
  }
  const [status, current] = enter(request.headers);
  if (current === null) return answer(response, status, { error: "refused" });
  inProgress += 1;
  response.on("close", () => {
    inProgress -= 1;
    leave();
  });
  if (path === "/sessions" && ["POST", "DELETE"].includes(request.method)) {
    sessionOpen = request.method === "POST";
    return answer(response, 200, { ok: true });
  }
  // What this worker is for:
  answer(response, 200, { worker: env.WARMPOOL_WORKER, claim: current.claim, path });
});

function leave() {
  if (draining && !sessionOpen && inProgress === 0) process.exit(0);
}

process.on("SIGTERM", () => {
  draining = true;
  setTimeout(() => process.exit(1), graceMs);
  leave();
});

server.listen(Number(env.PORT), env.WARMPOOL_HOST ?? "0.0.0.0");
