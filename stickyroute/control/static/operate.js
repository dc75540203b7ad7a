// What the buttons do: a POST with the token, if one is needed. The token lives in this tab and nowhere else.

import { byId, el, text } from "./dom.js";

const KEPT = "stickyroute.admin_token";
const TOAST_MS = 6000;
const SURE_MS = 4000;

export class Operator {
  constructor() {
    this.token = sessionStorage.getItem(KEPT) ?? "";
    this.access = "open";
    this.available = () => 2;
    this.dialog = byId("token-dialog");
    this.waiting = null;
    byId("unlock").addEventListener("click", () => (this.token ? this.forget() : this.ask(null)));
    byId("token-cancel").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("submit", (event) => {
      event.preventDefault();
      this.save(byId("token").value.trim());
    });
  }

  /** `access`: open (no token needed), token, closed (nothing can be changed). */
  show(access) {
    this.access = access;
    const button = byId("unlock");
    button.hidden = access !== "token";
    text(button, this.token ? "Lock" : "Unlock");
  }

  async act(name, action, button) {
    if (this.access === "token" && !this.token) {
      this.ask(() => this.act(name, action, button));
      return;
    }
    const last = action === "drain" || action === "disable" ? this.available(name) < 1 : false;
    if ((action === "disable" || last) && !sure(button, last)) return;
    button.disabled = true;
    try {
      await this.post(name, action, button);
    } finally {
      button.disabled = false;
    }
  }

  async post(name, action, button) {
    const headers = { "Content-Type": "application/json" };
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    let reply;
    let answer = null;
    try {
      reply = await fetch(`backends/${encodeURIComponent(name)}/${action}`, { method: "POST", headers, body: "{}" });
      answer = await reply.json();
    } catch {
      toast(`${action} ${name}: stickyroute did not answer`, "bad");
      return;
    }
    if (reply.ok) {
      toast(answer.told ?? `${name}: ${action}`, answer.warning ? "warn" : "good");
    } else if (reply.status === 401) {
      this.forget();
      this.ask(() => this.act(name, action, button), answer.error?.message);
    } else {
      toast(answer.error?.message ?? `${action} ${name}: ${reply.status}`, "bad");
    }
  }

  ask(then, problem = "") {
    this.waiting = then;
    byId("token").value = "";
    byId("token-problem").hidden = !problem;
    text(byId("token-problem"), problem);
    this.dialog.showModal();
    byId("token").focus();
  }

  save(token) {
    if (!token) return;
    this.token = token;
    sessionStorage.setItem(KEPT, token);
    this.dialog.close();
    this.show(this.access);
    this.waiting?.();
    this.waiting = null;
  }

  forget() {
    this.token = "";
    sessionStorage.removeItem(KEPT);
    this.show(this.access);
  }
}

/** Whether this is the second press; the first one asks. */
function sure(button, last) {
  if (button.classList.contains("sure")) {
    button.classList.remove("sure");
    text(button, button.dataset.said);
    return true;
  }
  button.dataset.said = button.textContent;
  text(button, last ? "The last one. Sure?" : "Sure?");
  button.classList.add("sure");
  setTimeout(() => {
    if (button.classList.contains("sure")) text(button, button.dataset.said);
    button.classList.remove("sure");
  }, SURE_MS);
  return false;
}

export function toast(said, kind) {
  const node = el("p", { class: `toast ${kind}` }, said);
  byId("toasts").append(node);
  setTimeout(() => node.remove(), TOAST_MS);
}
