// The confirmation before a lease is broken.
import { h, fill, announce, notice } from "./dom.js";
import { postBreak } from "./api.js";

let lastName = ""; // of the operator, for as long as the page is open

// breakDialog asks for a name and a reason, and breaks the lease of the grant that the page shows. The
// dialog stays open until the outcome is known. notes is where the view of the run shows messages.
export function breakDialog(run, ref, about, notes) {
  const { token, token_text: text, owner } = run.lease;
  const field = (id, title, props, help) => {
    const input = h("input", { id, required: true, autocomplete: "off", spellcheck: "false", ...props });
    return { input, box: h("div", { class: "field" }, h("label", { for: id }, title), input, help && h("p", { class: "quiet" }, help)) };
  };
  const confirm = field("break-token", `Token to end: type ${text}`, { inputmode: "decimal", maxlength: "24" });
  const name = field("break-name", "Your name", { maxlength: "256", value: about.operator ?? lastName, readonly: !!about.operator }, "stored in the journal of the run");
  const reason = field("break-reason", "Reason", { maxlength: "256" }, "stored with your name");
  const trouble = h("div", { role: "alert" });
  const submit = h("button", { type: "submit", class: "danger" }, "Break the lease");
  const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel");
  const dialog = h("dialog", { "aria-labelledby": "break-title", on: {
    cancel: (event) => { if (cancel.disabled) event.preventDefault(); },
    close: () => { dialog.remove(); document.getElementById("break")?.focus(); },
  } },
    h("form", { on: { submit: send } },
      h("h2", { id: "break-title" }, "Break the lease of ", h("span", { class: "id" }, run.id)),
      h("p", null, "This ends the grant of ", h("strong", null, owner), " under token ", h("strong", { class: "token" }, text),
        " at once: the store refuses every later write under it, and another driver may take the run over. If the token has moved, nothing is changed."),
      confirm.box, name.box, reason.box, trouble,
      h("div", { class: "buttons" }, submit, cancel)));
  confirm.input.addEventListener("input", () => confirm.input.setCustomValidity(""));

  async function send(event) {
    event.preventDefault();
    if (confirm.input.value.trim() !== text) {
      confirm.input.setCustomValidity(`The token that this page shows is ${text}.`);
      confirm.input.reportValidity();
      return;
    }
    submit.disabled = cancel.disabled = true;
    dialog.setAttribute("closedby", "none"); // a second Esc closes a dialog although its cancel event is prevented
    fill(trouble, h("p", { class: "quiet" }, "Waiting for the answer of the server…"));
    lastName = name.input.value;
    try {
      const broken = await postBreak({ run: ref, token: String(token), operator: name.input.value, reason: reason.input.value });
      dialog.close();
      say("good", `The grant of ${broken.from} on the run ${run.id} under token ${broken.broken_token_text} has ended. The token is now ${broken.token_text}, and the lease is free. Stop the former holder.`);
    } catch (error) {
      // A proxy that answers for the server (kind "http") does not know whether the server has broken the lease.
      const unknown = error.status && error.kind !== "http" ? "" : " It is unknown whether the lease was broken: the journal of the run shows that.";
      const message = `Run ${run.id}: ${error.message}${unknown}`;
      if (!dialog.isConnected) say("bad", message); // a browser without closedby has closed it
      fill(trouble, h("p", { class: "problem bad" }, message));
      submit.disabled = ["moved", "free", "incomplete"].includes(error.kind); // this dialog is about a grant that has ended
      cancel.disabled = false;
      dialog.removeAttribute("closedby");
    }
  }

  // say shows a message in the view of the run, or above every view if the page has left that one.
  function say(level, message) {
    announce(message);
    if (notes.isConnected) fill(notes, h("p", { class: `problem ${level} done` }, message));
    else notice(level, message);
  }

  document.body.append(dialog);
  dialog.showModal();
  confirm.input.focus();
}
