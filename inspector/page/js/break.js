// The confirmation before a lease is broken.
import { h, fill, announce } from "./dom.js";
import { postBreak } from "./api.js";

let lastName = ""; // of the operator, for as long as the page is open

// breakDialog asks for a name and a reason, and breaks the lease of the grant that the page shows.
export function breakDialog(run, ref, about) {
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
  const dialog = h("dialog", { "aria-labelledby": "break-title", on: { close: () => { dialog.remove(); document.getElementById("break")?.focus(); } } },
    h("form", { on: { submit: send } },
      h("h2", { id: "break-title" }, "Break the lease of ", h("span", { class: "id" }, run.id)),
      h("p", null, "This ends the grant of ", h("strong", null, owner), " under token ", h("strong", { class: "token" }, text),
        " at once: the store refuses every later write under it, and another driver may take the run over. If the token has moved, nothing is changed."),
      confirm.box, name.box, reason.box, trouble,
      h("div", { class: "buttons" }, submit, h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"))));
  confirm.input.addEventListener("input", () => confirm.input.setCustomValidity(""));

  async function send(event) {
    event.preventDefault();
    if (confirm.input.value.trim() !== text) {
      confirm.input.setCustomValidity(`The token that this page shows is ${text}.`);
      confirm.input.reportValidity();
      return;
    }
    submit.disabled = true;
    fill(trouble);
    lastName = name.input.value;
    try {
      const broken = await postBreak({ run: ref, token: String(token), operator: name.input.value, reason: reason.input.value });
      dialog.close();
      const message = `The grant of ${broken.from} under token ${broken.broken_token_text} has ended. The token is now ${broken.token_text}, and the lease is free. Stop the former holder.`;
      announce(message);
      document.querySelector(".view .cards")?.before(h("p", { class: "problem good done" }, message));
    } catch (error) {
      fill(trouble, h("p", { class: "problem bad" }, error.message));
      submit.disabled = ["moved", "free", "incomplete"].includes(error.kind); // this dialog is about a grant that has ended
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  confirm.input.focus();
}
