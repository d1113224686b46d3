// A reporter for mocha: one line of JSON for each test that begins and ends, in the file that SUITE_RESULTS names.
// A file and not the console, which belongs to the tests; a line at a time, so that a run that hangs tells where.

const fs = require("node:fs");

module.exports = function Lines(runner) {
  const say = (outcome, test, error) =>
    fs.appendFileSync(
      process.env.SUITE_RESULTS,
      JSON.stringify({
        outcome,
        title: test.fullTitle(),
        duration_ms: test.duration,
        error: error && String(error.stack || error.message || error).slice(0, 4000),
      }) + "\n",
    );
  runner.on("test", (test) => say("begun", test));
  runner.on("pass", (test) => say("passed", test));
  runner.on("fail", (test, error) => say("failed", test, error));
  runner.on("pending", (test) => say("skipped", test));
};
