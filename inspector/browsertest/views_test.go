package browsertest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tapestore/tapestore/inspector"
	"github.com/tapestore/tapestore/lease"
	"github.com/tapestore/tapestore/runstore"
)

// The list of runs: pages, filters, and what waits in the queues.
func TestRuns(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Read})
	b.visit("/runs")
	b.until(rows + " === 50")
	b.has("Stuck obligations")
	b.shoot("inspector-runs.png")
	b.fits()
	b.do(chromedp.Click(`//button[text()="Older runs"]`))
	b.until(rows + " === 100")
	b.do(chromedp.Click(`//button[text()="Older runs"]`))
	b.has("there are no others")
	if n := eval[int](b, rows); n != 123 {
		t.Errorf("all pages have %d runs, want 123", n)
	}

	b.do(chromedp.SetValue("#f-status", "failed"), chromedp.Click(`//button[text()="Show"]`))
	b.has("4 shown, looked at 123 runs")
	if n := eval[int](b, rows); n != 4 {
		t.Errorf("%d runs are shown as failed, want 4", n)
	}
	b.do(chromedp.Click(`//a[text()="Clear"]`))
	b.until(rows + " === 50")
	b.do(chromedp.SendKeys("#f-prefix", "ledger-import"+kb.Enter))
	b.has("The run of exactly this id")
	b.until(rows + " === 1")
	b.visit("/runs?tenant=acme-eu&lease=held")
	b.has("1 shown")
	contains(t, b.text(), "recovery-2b41", "billing · acme")
	if v := eval[string](b, `document.querySelector("#f-tenant").value`); v != "acme-eu" {
		t.Errorf("the field of the tenant has %q", v)
	}
	b.do(chromedp.NavigateBack())
}

// The run that needs attention: what a person on call has to see without scrolling.
func TestRun(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	b.visit(runPath(string(b.store.incident)))
	b.until(`document.querySelectorAll(".timeline > li").length > 8`)
	contains(t, b.text(), "Who holds it", "recovery-2b41", "as recovery", "What is stuck", "it is unknown whether the effect happened",
		"every attempt to compensate failed", "What it did last", "expired", "agent-7f9c")
	for _, card := range []string{"lease-title", "stuck-title", "last-title"} {
		if bottom := eval[float64](b, fmt.Sprintf(`document.getElementById(%q).parentElement.getBoundingClientRect().top`, card)); bottom > 400 {
			t.Errorf("the card %s begins at %v pixels, below the first half of the window", card, bottom)
		}
	}
	b.shoot("inspector-run.png")
	b.fits()
	b.do(chromedp.Click(`#stuck-title ~ .problems button`))
	b.until(`document.querySelector(".problems details[open] .facts")`)
	b.do(chromedp.Click(`//a[text()="Oldest first"]`))
	b.until(`document.querySelector(".timeline .seq")?.textContent === "#1"`)
	b.do(chromedp.ScrollIntoView(`#below-title`), chromedp.Click(`.timeline > li:nth-child(3) summary`))
	b.until(`document.querySelector(".timeline details[open] pre")`)
	b.shoot("inspector-timeline.png")
	b.do(chromedp.Click(`//nav[@aria-label="Parts of the run"]/a[text()="Records"]`))
	b.until(`document.querySelector("#below-title")?.textContent === "Records"`)
	b.do(chromedp.Click(`//a[text()="effects"]`))
	b.until(`document.querySelectorAll(".timeline > li.record").length === 2`)
}

// A long journal in both orders, and values that are large or binary.
func TestTimelinePages(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Read})
	b.visit(runPath("ledger-import"))
	const events = `[...document.querySelectorAll(".timeline .event .seq")].map((e) => Number(e.textContent.slice(1)))`
	b.until(`(` + events + `).length === 50`)
	b.do(chromedp.Click(`//button[text()="Earlier events"]`))
	b.until(`(` + events + `).length === 100`)
	b.do(chromedp.Click(`//button[text()="Earlier events"]`))
	b.until(`(` + events + `).length === 132`)
	b.has("all of them")
	if !eval[bool](b, `(`+events+`).every((s, i) => s === 132 - i)`) {
		t.Error("the events are not in the reverse order of the journal, without a gap")
	}
	if n := eval[int](b, `document.querySelectorAll(".timeline .record").length`); n != 13 {
		t.Errorf("the timeline has %d records, want 13", n)
	}
	b.do(chromedp.Click(`.timeline > li:nth-child(1) summary`))
	b.do(chromedp.Click(`//button[contains(text(), "Load all 4.0 KiB") or contains(text(), "Load all 3.9 KiB")]`))
	b.until(`document.querySelector("pre.whole")?.textContent.includes("END")`)
	b.do(chromedp.Click(`.timeline > li:nth-child(2) summary`))
	b.has("00 01 02 ff fe")
	b.visit(runPath("ledger-import") + "?order=oldest")
	b.until(`(` + events + `)[49] === 50`)
}

// The lease changes while the page shows it, and the page follows without being loaded again. It stops
// when it is hidden.
func TestLive(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Read})
	id := b.store.incident
	b.visit(runPath(string(id)))
	b.has("recovery-2b41")
	eval[int](b, `window.notLoadedAgain = 1`)
	broken, err := lease.Break(t.Context(), b.store, lease.BreakRequest{Run: id, Whoever: true, Operator: "ada", Reason: "the worker loops"})
	if err != nil {
		t.Fatal(err)
	}
	b.has("no holder")
	b.has("broken by ada: the worker loops")
	b.until(`document.querySelector("#announce").textContent.startsWith("The lease is free")`)
	b.until(`!document.querySelector(".newer").hidden`)
	if _, err := b.store.AcquireLease(t.Context(), runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "agent-next", TTL: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector("#lease-title + .big").textContent.includes("agent-next")`)
	b.until(fmt.Sprintf(`document.querySelector(".card .token").textContent === "%d"`, broken.Token+1))
	b.store.engine.Advance(2 * time.Minute)
	b.until(`document.querySelector("#lease-title + .big .warn")?.textContent === "expired"`)
	if eval[int](b, `window.notLoadedAgain`) != 1 {
		t.Error("the page was loaded again")
	}

	b.hide(true)
	for b.watching.Load() > 0 { // the page cancels the request that waits
		eval[bool](b, `new Promise((done) => setTimeout(() => done(true), 5))`)
	}
	b.hide(false)
	for b.watching.Load() == 0 {
		eval[bool](b, `new Promise((done) => setTimeout(() => done(true), 5))`)
	}
}

// The confirmation asks for the token, a name and a reason, and breaks the lease that it showed.
func TestBreak(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	id := b.store.incident
	b.visit(runPath(string(id)))
	b.do(chromedp.Click("#break", chromedp.NodeVisible))
	b.until(`document.activeElement.id === "break-token"`)
	b.press("2\tada\tthe worker loops")
	b.shoot("inspector-break.png")
	b.do(chromedp.SetValue("#break-token", "1"))
	b.press(kb.Enter)
	b.until(`document.querySelector("#break-token").validationMessage.includes("is 2")`)
	if head, err := b.store.GetRun(t.Context(), id); err != nil || head.Token != 2 {
		t.Fatalf("a wrong token broke the lease: %+v, %v", head, err)
	}
	b.do(chromedp.SetValue("#break-token", "2"), chromedp.Click(`dialog button.danger`))
	b.has("The token is now 3, and the lease is free")
	b.until(`!document.querySelector("dialog")`)
	b.has("no holder")
	events, err := b.store.ReadJournal(t.Context(), id, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	entry, ok := lease.ParseBreak(events[len(events)-1].Data)
	if !ok || entry.Operator != "ada" || entry.Reason != "the worker loops" || entry.Broken != 2 {
		t.Errorf("the journal has %+v, %v", entry, ok)
	}

	// The token moves while the dialog is open: nothing is changed.
	acquire := runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute}}
	if _, err := b.store.AcquireLease(t.Context(), acquire); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Click("#break", chromedp.NodeVisible))
	acquire.Owner, acquire.Preempt = "agent-b", "a deployment"
	if _, err := b.store.AcquireLease(t.Context(), acquire); err != nil {
		t.Fatal(err)
	}
	b.press("4\tada\tlate" + kb.Enter)
	b.until(`document.querySelector("dialog").innerText.includes("Nothing was changed: the token has moved, the last one is 5.")`)
	b.press(kb.Escape)
	b.until(`!document.querySelector("dialog")`)
	if head, err := b.store.GetRun(t.Context(), id); err != nil || head.Holder.Owner != "agent-b" {
		t.Errorf("the holder is %q, %v", head.Holder.Owner, err)
	}
}

// A page that may not break leases does not offer it.
func TestReadOnly(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Read})
	b.visit(runPath(string(b.store.incident)))
	b.has("recovery-2b41")
	if eval[bool](b, `!!document.getElementById("break")`) {
		t.Error("the page offers to break the lease")
	}
}

// The page takes the token from its address, keeps it for its tab, gives it to other tabs, and asks for
// it otherwise.
func TestToken(t *testing.T) {
	b := openWith(t, func(r *http.Request) (inspector.Access, error) {
		if r.Header.Get("Authorization") != "Bearer let me in" {
			return inspector.Access{}, inspector.ErrUnauthenticated
		}
		return inspector.Access{Permission: inspector.Read}, nil
	})
	b.visit("/runs")
	b.has("This server asks for a token")
	b.press("wrong" + kb.Enter)
	b.has("refuses the token")
	b.do(chromedp.SendKeys(chromedp.ID("token"), "let me in"+kb.Enter))
	b.until(rows + " === 50")
	b.do(chromedp.Reload())
	b.until(rows + " === 50")
	eval[bool](b, `(sessionStorage.clear(), true)`)
	b.visit("token=let%20me%20in&to=" + runPath("ledger-import"))
	b.has("ledger-import")
	if hash := eval[string](b, `location.hash`); hash != "#"+runPath("ledger-import") {
		t.Errorf("the address is %q, want no token in it", hash)
	}
	ctx, cancel := chromedp.NewContext(b.ctx)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(b.url)); err != nil {
		t.Fatal(err)
	}
	other := &browser{T: t, ctx: ctx, url: b.url}
	other.until(rows + " === 50")
}

// Every part of the flow with the keyboard alone, from the list to a broken lease.
func TestKeyboard(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	b.visit("/runs?tenant=acme-eu")
	b.has("1 shown")
	b.tabTo(`el.id === "skip"`)
	b.press(kb.Enter)
	b.tabTo(`el.id === "f-prefix"`)
	if outline := eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`); outline != "solid" {
		t.Errorf("the focus is not visible: outline %q", outline)
	}
	b.tabTo(`el.matches("table a")`)
	b.press(kb.Enter)
	b.until(`document.activeElement.matches("h1") && location.hash.startsWith("#/run/")`)
	b.tabTo(`el.id === "break"`)
	b.press(kb.Enter)
	b.until(`document.activeElement.id === "break-token"`)
	b.press(kb.Escape)
	b.until(`document.activeElement.id === "break"`)
	b.press(kb.Enter)
	b.until(`document.activeElement.id === "break-token"`)
	b.press("2\tada\tthe worker loops\t")
	b.press(kb.Enter)
	b.has("the lease is free. Stop")
	b.tabTo(`el.matches(".timeline summary")`)
	b.press(kb.Enter)
	b.until(`document.activeElement.parentElement.open`)

	b.tabTo(`el.matches(".timeline summary") && !el.parentElement.open`)
}

// The page shows everything that a store has as text.
func TestHostile(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	check := func() {
		t.Helper()
		if eval[bool](b, `window.pwned === 1 || !!document.querySelector("main img, main script, main svg, main iframe")`) {
			t.Errorf("markup of the store became markup of the page at %s", eval[string](b, "location.hash"))
		}
		if eval[bool](b, `/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)`) {
			t.Errorf("the page has a character that changes the direction of writing, at %s", eval[string](b, "location.hash"))
		}
	}
	batch := runstore.NewBatch(hostile, runstore.Unguarded("test"))
	batch.Append(hostile, []byte(hostile))
	if _, err := b.store.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	b.visit("/runs?prefix=%3Cimg")
	b.has("<img src=x onerror")
	check()
	b.do(chromedp.Click(`//table//a[contains(text(), "<img")]`))
	b.until(`document.querySelectorAll(".timeline > li").length === 4`)
	eval[int](b, `document.querySelectorAll(".timeline summary").forEach((s) => s.click()), 1`)
	b.until(`document.querySelectorAll(".timeline pre").length === 4`)
	check()
	b.do(chromedp.Click("#break", chromedp.NodeVisible))
	b.until(`document.querySelector("dialog").innerText.includes("<img")`)
	check()
	for _, path := range []string{"/feed", "/queues", "/groups?name=" + `%3Cimg%20src=x%20onerror=window.pwned=1%3E`, "/queue/%3Cimg%20src=x%20onerror=window.pwned=1%3E", "/run/%3Cimg%20src=x%20onerror=window.pwned=1%3E", "/%3Cimg%20src=x%3E", "/run/%E0%A4%A"} {
		b.visit(path)
		check()
	}
	// The policy of the page refuses what textContent would have let through.
	refused := eval[string](b, `(() => { try { document.body.innerHTML = "<b>x</b>"; return "markup was taken" } catch (e) { return e.name } })()`)
	if refused != "TypeError" {
		t.Errorf("innerHTML: %s, want a TypeError of Trusted Types", refused)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = slicesDelete(b.faults, "TrustedHTML") // the refusal above
}

func slicesDelete(all []string, part string) (rest []string) {
	for _, s := range all {
		if !strings.Contains(s, part) {
			rest = append(rest, s)
		}
	}
	return rest
}

// The feed shows an event as soon as it is committed.
func TestFeed(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Read})
	b.visit("/feed")
	b.until(rows + " === 50")
	batch := runstore.NewBatch("ledger-import", runstore.Unguarded("test"))
	batch.Append("signal", []byte(`{"status":"just now"}`))
	if _, err := b.store.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	b.until(`document.querySelector("main table tbody tr").innerText.includes("just now")`)
	b.shoot("inspector-feed.png")
}

// The queues, and the entries of one.
func TestQueues(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Read})
	b.visit("/queues")
	b.until(rows + " === 7")
	b.shoot("inspector-queues.png")
	b.do(chromedp.Click(`//a[text()="Stuck obligations"]`))
	b.has("obligation.stuck")
	b.until(rows + " === 1")
	contains(t, b.text(), string(b.store.incident))
	b.visit("/queues")
	b.do(chromedp.SendKeys("#index", "run.ended"+kb.Enter))
	b.until(rows + " === 50")
}

// Dark mode has other colors, and every text in either mode has a contrast of at least 4.5 to 1.
func TestColors(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	grounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, path := range []string{"/runs", runPath(string(b.store.incident)), "/queues", "/feed"} {
			b.visit(path)
			b.until(`document.querySelector("main .badge") && document.querySelector("main table tbody tr")`)
			if low := eval[[]string](b, contrast); len(low) > 0 {
				t.Errorf("%s at %s: texts with too little contrast: %s", scheme, path, strings.Join(low, "; "))
			}
		}
		grounds[scheme] = eval[string](b, `getComputedStyle(document.documentElement).backgroundColor`)
	}
	if grounds["light"] == grounds["dark"] {
		t.Errorf("the ground is %s in both modes", grounds["light"])
	}
	b.visit(runPath(string(b.store.incident)))
	b.until(`document.querySelectorAll(".timeline > li").length > 8`)
	b.shoot("inspector-dark.png")
}

// contrast returns the texts whose contrast with their ground is below 4.5.
const contrast = `(() => {
  const parse = (c) => c.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255, v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const low = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.disabled) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(ground(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push(e.tagName + "." + e.className + " " + ratio.toFixed(2));
  }
  return [...new Set(low)];
})()`

// A telephone shows everything without scrolling sideways.
func TestNarrow(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	for _, path := range []string{"/runs", runPath(string(b.store.incident)), runPath("ledger-import"), "/queues", "/queue/obligation.stuck", "/feed", "/groups"} {
		b.visit(path)
		if path != "/groups" {
			b.until(`document.querySelector("main table tbody tr")`)
		}
		b.fits()
		if path == runPath(string(b.store.incident)) {
			b.until(`document.querySelectorAll(".timeline > li").length > 8`)
			b.shoot("inspector-narrow.png")
			b.do(chromedp.Click("#break", chromedp.NodeVisible))
			b.fits()
		}
	}
}

// Landmarks, names of controls, headings: what a screen reader needs.
func TestSemantics(t *testing.T) {
	b := open(t, inspector.Access{Permission: inspector.Break})
	for _, path := range []string{"/runs", runPath(string(b.store.incident)), "/queues", "/feed", "/groups"} {
		b.visit(path)
		faults := eval[[]string](b, `(() => {
  const faults = [];
  const one = (selector) => { const n = document.querySelectorAll(selector).length; if (n !== 1) faults.push(n + " elements " + selector); };
  one("main"); one("body > header"); one("main h1"); one("html[lang]");
  for (const e of document.querySelectorAll("input, select")) if (!e.labels?.length && !e.ariaLabel) faults.push("no label: " + e.outerHTML);
  for (const e of document.querySelectorAll("a[href], button")) if (!e.textContent.trim() && !e.ariaLabel) faults.push("no name: " + e.outerHTML);
  for (const e of document.querySelectorAll("table")) if (!e.caption?.textContent) faults.push("a table without a caption");
  for (const e of document.querySelectorAll("[aria-labelledby]")) if (!document.getElementById(e.getAttribute("aria-labelledby"))) faults.push("aria-labelledby names nothing: " + e.outerHTML.slice(0, 99));
  for (const e of document.querySelectorAll("a")) if (!e.getAttribute("href")?.startsWith("#/")) faults.push("a link to elsewhere: " + e.outerHTML);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => faults.push("two elements have the id " + id));
  return faults;
})()`)
		for _, fault := range faults {
			t.Errorf("%s: %s", path, fault)
		}
	}
}
