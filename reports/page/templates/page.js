"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

for (const button of all(".copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

const text = document.getElementById("filter");
const only = document.getElementById("only");
const rows = all(".matrix tbody tr");
document.querySelector(".filter").hidden = false;
function show() {
  const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) {
    const said = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => said.includes(word)) || !(only.value === "" || row.dataset.verdict === only.value);
  }
  document.getElementById("shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
}
text.addEventListener("input", show);
only.addEventListener("change", show);

function reveal() {
  const named = location.hash && document.getElementById(location.hash.slice(1));
  if (named && named.tagName === "DETAILS") {
    named.open = true;
    named.scrollIntoView();
  }
}
addEventListener("hashchange", reveal);
reveal();

let closed = [];
addEventListener("beforeprint", () => {
  closed = all("details:not([open])");
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of closed) one.open = false;
});
