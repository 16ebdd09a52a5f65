"use strict";
const KINDS = {
  failed: "bad", unreadable: "bad", diverged: "bad", refused: "quiet", skipped: "quiet", "not run": "open", running: "open",
};
const followed = document.querySelector("[data-follow]");

const set = (root, name, text) => {
  const place = root.querySelector("[data-" + name + "]");
  if (place && place.textContent !== String(text)) place.textContent = text;
};
const time = (seconds) =>
  seconds < 90 ? Math.round(seconds) + " s" : seconds < 5400 ? Math.round(seconds / 60) + " min" : (seconds / 3600).toFixed(1) + " h";

const showCounts = (root, one) => {
  set(root, "state", one.state);
  set(root, "done", one.done);
  set(root, "total", one.total);
  const bar = root.querySelector("progress");
  bar.max = one.total;
  bar.value = one.done;
};

const showCampaign = (one) => {
  showCounts(followed, one);
  set(followed, "left", one.seconds_left == null ? "" : ", about " + time(one.seconds_left) + " left");
  set(followed, "counts", Object.entries(one.counts).map(([status, number]) => number + " " + status).join(", "));
  followed.querySelector("[data-report]").hidden = !one.level;
  const running = new Map(one.running.map((cell) => [cell.cell, cell.steps ? cell.step + " of " + cell.steps : "running"]));
  for (const [key, ended] of Object.entries(one.statuses)) {
    const label = document.querySelector("#cell-" + key + " .status");
    const status = ended === "not run" && running.has(key) ? running.get(key) : ended;
    if (label && label.textContent !== status) {
      label.textContent = status;
      label.className = "status " + (running.has(key) && ended === "not run" ? "open" : KINDS[ended] || "fine");
    }
  }
};

const showList = (all) => {
  for (const one of all) {
    const row = document.getElementById("campaign-" + one.id);
    if (!row) return location.reload();
    showCounts(row, one);
    set(row, "level", one.level ? " · " + one.level : "");
    row.querySelector(".status").className = "status " + ({ done: "fine", running: "open" }[one.state] || "quiet");
  }
};

const follow = async () => {
  try {
    const answer = await fetch(followed.dataset.follow);
    if (answer.ok) {
      const content = await answer.json();
      if (Array.isArray(content)) showList(content);
      else showCampaign(content);
    }
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
  setTimeout(follow, 1000);
};
if (followed) follow();
