// Every question type, the models list, aborts and errors through the official SDK.
// node typesafe.mjs URL, with @typesafe-ai/sdk installed in the working directory.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const sdk = createRequire(join(process.cwd(), "package.json"))("@typesafe-ai/sdk");
const { TypeSafeClient, UnprocessableEntityError, NotFoundError, APIUserAbortError, noul, choice, score } = sdk;

const client = new TypeSafeClient({ apiKey: "any", baseURL: process.argv[2], timeout: 60_000, retry: { maxRetries: 0 } });

const questions = {
  "질문 🎯": noul("Is a refund asked for?"),
  team: choice("Which team?", { billing: "invoices", technical: null }),
  urgency: score("How urgent?", ["not urgent", "soon", "blocking"]),
};
for (const state of ["Refund me.", { body: "Refund me." }, ["Refund", "me"], null]) {
  const { answers, model, usage } = await client.systemOne({ state, questions });
  assert.equal(model, "qwen35-h64-F32");
  assert.ok(usage.input_tokens > 0 && usage.output_tokens === 0);
  assert.deepEqual(Object.keys(answers), Object.keys(questions));
  const { "질문 🎯": refund, team, urgency } = answers;
  assert.ok(refund.noul > 0 && refund.noul < 1);
  assert.ok(["billing", "technical"].includes(team.choice));
  assert.ok(Math.abs(team.probabilities.billing + team.probabilities.technical - 1) < 1e-9);
  assert.deepEqual(urgency.legend, { 0: "not urgent", 1: "soon", 2: "blocking" });
  assert.ok(urgency.score >= 0 && urgency.score <= 2);
}

const models = await client.models.list();
assert.ok(models.some(model => model.name === "jev-latest"));

await assert.rejects(client.systemOne({ state: "x", questions: { q: choice("?", {}) } }), error => {
  assert.ok(error instanceof UnprocessableEntityError);
  assert.match(error.message, /questions\.q\.choice\.criteria/);
  assert.ok(error.requestId);
  return true;
});
await assert.rejects(client.systemOne({ state: "x", questions, model: "gpt-4" }), NotFoundError);

const many = Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`q${i}`, noul(`Question ${i}?`)]));
const signal = AbortSignal.timeout(300);
await assert.rejects(client.systemOne({ state: "word ".repeat(4000), questions: many }, { signal }), APIUserAbortError);
console.log("ok");
