// Bundles the page into one HTML file. The output is reproducible: it contains no time, path or random name.
import { build, transform } from "esbuild";
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = new URL("./", import.meta.url);
const target = process.argv[2] ?? fileURLToPath(new URL("../src/apcore_a2a/explorer/page.html", here));

const script = await build({
  entryPoints: [fileURLToPath(new URL("src/main.tsx", here))],
  bundle: true,
  minify: true,
  write: false,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  absWorkingDir: fileURLToPath(here),
});
const style = await transform(await readFile(new URL("src/style.css", here), "utf8"), {
  loader: "css",
  minify: true,
  target: "es2022",
  charset: "utf8",
});

// "</script" would end the script element, wherever it occurs.
const code = script.outputFiles[0].text.trim().replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const template = await readFile(new URL("src/page.html", here), "utf8");
const page = template.replace("/* style */", () => style.code.trim()).replace("/* script */", () => code);
await writeFile(target, page);
console.log(`${target}: ${Buffer.byteLength(page).toLocaleString("en")} bytes`);
