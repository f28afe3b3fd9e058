// Looks at every page in Chromium: `node check.mjs URL CHROMIUM DIRECTORY [STOP-PID]`, where URL is that of a gateway's
// overview, DIRECTORY takes the screenshots, and STOP-PID is a gateway that is stopped at the end.
import { readFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [base, executablePath, directory, gatewayPid] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const widths = [360, 1280, 2560];
const failures = [];
let checks = 0;

function expect(holds, what) {
  checks += 1;
  if (!holds) failures.push(what);
}

// Nothing but this server may be asked, and nothing may be reported to the console.
function watch(page, name) {
  page.on("request", (request) => expect(new URL(request.url()).origin === new URL(base).origin, `${name}: asks ${request.url()}`));
  const isExpected = (message) => name.startsWith("nothing") && message.text().includes("404");
  page.on("console", (message) => expect(isExpected(message) || !["error", "warning"].includes(message.type()), `${name}: console: ${message.text()}`));
  page.on("pageerror", (error) => expect(false, `${name}: ${error}`));
}

async function links(browser) {
  const page = await browser.newPage();
  await page.goto(base);
  const first = async (selector) => page.locator(selector).first().getAttribute("href");
  const found = [await first("#apps tbody th a"), await first("#diagram .links a")];
  const main = await page.locator("nav[aria-label=Pages] a").evaluateAll((all) => all.map((link) => link.getAttribute("href")));
  await page.close();
  return [...main, ...found, `${new URL(base).pathname}what-if?lose=wan0`, "/nothing"].map((path) => new URL(path, base).href);
}

function nameOf(url) {
  const { pathname, search } = new URL(url);
  return (pathname + search).replace(/[^a-z0-9]+/gi, "-").replace(/^-|-$/g, "");
}

async function look(browser, url, colorScheme) {
  const name = `${nameOf(url)}-${colorScheme}`;
  const page = await browser.newPage({ colorScheme });
  watch(page, name);
  for (const width of widths) {
    await page.setViewportSize({ width, height: 900 });
    const reply = await page.goto(url);
    expect(reply.ok() || url.endsWith("/nothing"), `${name}: status ${reply.status()}`);
    if (await page.locator("body[data-live]").count()) await page.getByText("Live: this page updates by itself.").waitFor();
    const overflow = await page.evaluate(() => document.scrollingElement.scrollWidth - window.innerWidth);
    expect(overflow <= 0, `${name} at ${width}: the page is ${overflow} pixels too wide`);
    await page.screenshot({ path: join(directory, `${name}-${width}.png`), fullPage: true, animations: "disabled" });
    // The widest differs from the one before in nothing that axe sees.
    if (width === widths.at(-1)) continue;
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    for (const violation of violations) {
      const where = violation.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join("\n    ");
      expect(false, `${name} at ${width}: axe ${violation.id}: ${violation.help}\n    ${where}`);
    }
    checks += 1;
  }
  await page.close();
}

async function checkLive(browser) {
  const page = await browser.newPage();
  await page.goto(base);
  const time = page.locator("#state time");
  const before = await time.textContent();
  const link = page.locator("#apps tbody th a").first();
  await link.focus();
  await page.waitForFunction((old) => document.querySelector("#state time").textContent !== old, before, { timeout: 20000 });
  await page.waitForTimeout(2500);
  const focused = await page.evaluate(() => document.activeElement.closest("#apps") !== null);
  expect(focused, "an update takes the focus away");
  if (gatewayPid) {
    process.kill(Number(gatewayPid), "SIGTERM");
    await page.getByText("no gateway is running").waitFor({ timeout: 20000 });
    await page.getByText("What is shown is").waitFor({ timeout: 5000 });
    await page.screenshot({ path: join(directory, "gateway-stopped-1280.png") });
  }
  await page.close();
}

async function checkKeyboard(browser) {
  const page = await browser.newPage();
  await page.goto(base);
  await page.keyboard.press("Tab");
  expect((await page.evaluate(() => document.activeElement.className)) === "skip", "the first tab stop does not skip the navigation");
  await page.keyboard.press("Enter");
  expect((await page.evaluate(() => document.activeElement.id)) === "main", "skipping does not lead to the content");
  await page.close();
}

async function checkWithoutScript(browser) {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(base);
  expect((await page.locator("#apps tbody tr").count()) > 0, "without JavaScript the overview has no applications");
  expect(await page.getByText("Without JavaScript this page does not update").isVisible(), "without JavaScript the page does not say so");
  await page.emulateMedia({ media: "print" });
  expect(!(await page.locator("nav[aria-label=Pages]").isVisible()), "the navigation is printed");
  await context.close();
}

mkdirSync(directory, { recursive: true });
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
});
try {
  for (const url of await links(browser)) {
    for (const scheme of ["light", "dark"]) await look(browser, url, scheme);
  }
  await checkKeyboard(browser);
  await checkWithoutScript(browser);
  await checkLive(browser);
} finally {
  await browser.close();
}
for (const failure of failures) console.error(`test-web: ${failure}`);
console.log(`test-web: ${checks} checks, ${failures.length} failed; screenshots are in ${directory}`);
process.exit(failures.length > 0 ? 1 : 0);
