// Reads {"card": …, "keys": {"keys": […]}} from standard input and has @a2a-js/sdk verify the card's signature.
const load = require("node:module").createRequire(process.cwd() + "/");
const { AgentCard, verifyAgentCardSignature } = load("@a2a-js/sdk");
const { card, keys } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
verifyAgentCardSignature(async (kid) => keys.keys.find((key) => key.kid === kid))(AgentCard.fromJSON(card)).then(
  () => console.log("holds"),
  (error) => console.log("refused: " + error.message),
);
