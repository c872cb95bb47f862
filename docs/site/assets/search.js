// Search over the sections of all pages. The index is loaded when the field gets the focus; without
// script the field stays hidden, and nothing else of the site needs script.
(() => {
	const index = new URL("search.json", document.currentScript.src);
	const box = document.getElementById("search");
	const input = box.querySelector("input");
	const status = box.querySelector("[role=status]");
	const results = document.getElementById("results");
	const most = 20;
	let loading;

	const load = () => loading ??= fetch(index).then((reply) => {
		if (!reply.ok) throw new Error(`${reply.status} ${reply.statusText}`);
		return reply.json();
	}).catch((err) => {
		loading = undefined; // the next key tries again
		throw err;
	});

	const count = (text, word) => text.toLowerCase().split(word).length - 1;

	// score is 0 unless the section has every word. Words of headings and titles count for more, and
	// so do words that stand together.
	const score = ([, page, heading, text], words) => {
		let sum = words.length > 1 && text.toLowerCase().includes(words.join(" ")) ? 15 : 0;
		for (const word of words) {
			const n = 20 * count(heading, word) + 10 * count(page, word) + Math.min(count(text, word), 5);
			if (n === 0) return 0;
			sum += n;
		}
		return sum;
	};

	const excerpt = (text, word) => {
		const at = Math.max(0, text.toLowerCase().indexOf(word) - 60);
		return (at > 0 ? "… " : "") + text.slice(at, at + 160) + (text.length > at + 160 ? " …" : "");
	};

	const item = ([address, page, heading, text], word) => {
		const li = document.createElement("li");
		const a = document.createElement("a");
		a.href = new URL(address, index);
		const strong = document.createElement("strong");
		strong.textContent = heading === "" ? page : `${page}: ${heading}`;
		const small = document.createElement("small");
		small.textContent = excerpt(text, word);
		a.append(strong, small);
		li.append(a);
		return li;
	};

	const say = (text) => {
		const li = document.createElement("li");
		li.textContent = text;
		results.replaceChildren(li);
		results.hidden = false;
		status.textContent = text;
	};

	const search = async () => {
		const words = input.value.toLowerCase().split(/\s+/).filter((word) => word.length > 1);
		if (words.length === 0) {
			results.hidden = true;
			status.textContent = "";
			return;
		}
		const asked = input.value;
		let sections;
		try {
			sections = await load();
		} catch (err) {
			say(`The index of the search cannot be loaded: ${err.message}`);
			return;
		}
		if (asked !== input.value) return; // a later key has the field
		const found = sections.map((s) => [score(s, words), s]).filter(([n]) => n > 0).sort(([a], [b]) => b - a);
		if (found.length === 0) {
			say("No section has all of these words.");
			return;
		}
		results.replaceChildren(...found.slice(0, most).map(([, s]) => item(s, words[0])));
		results.hidden = false;
		status.textContent = found.length === 1 ? "1 section found" : `${found.length} sections found`;
	};

	box.hidden = false;
	input.addEventListener("focus", () => load().catch(() => {}), { once: true });
	input.addEventListener("input", search);
	box.addEventListener("keydown", (event) => {
		const links = [...results.querySelectorAll("a")];
		const at = links.indexOf(document.activeElement);
		if (event.key === "Escape") {
			results.hidden = true;
			input.focus();
		} else if (event.key === "ArrowDown" && !results.hidden && at + 1 < links.length) {
			links[at + 1].focus();
			event.preventDefault();
		} else if (event.key === "ArrowUp" && at >= 0) {
			(at > 0 ? links[at - 1] : input).focus();
			event.preventDefault();
		}
	});
	document.addEventListener("focusin", (event) => {
		if (!box.contains(event.target)) results.hidden = true;
	});
	document.addEventListener("click", (event) => {
		if (!box.contains(event.target)) results.hidden = true;
	});
})();
