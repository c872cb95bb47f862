package browsertest

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tapestore/tapestore/inspector"
	"github.com/tapestore/tapestore/runstore"
	"github.com/tapestore/tapestore/tape"
)

// gate holds the next request of one path after hold.
type gate struct {
	path    string
	armed   atomic.Bool
	arrived chan bool // a request is held
	release chan bool // lets it go on
	ended   chan bool // the test is over
}

// openGate opens a browser with a gate.
func openGate(t *testing.T, path string) (*browser, *gate) {
	t.Helper()
	g := &gate{path: path, arrived: make(chan bool), release: make(chan bool), ended: make(chan bool)}
	b := openWith(t, g.authorize)
	t.Cleanup(func() { close(g.ended) }) // before the server is closed, which waits for its requests
	return b, g
}

func (g *gate) authorize(r *http.Request) (inspector.Access, error) {
	if r.URL.Path == g.path && g.armed.CompareAndSwap(true, false) {
		select {
		case g.arrived <- true:
		case <-g.ended:
		}
		select {
		case <-g.release:
		case <-r.Context().Done():
		case <-g.ended:
		}
	}
	return inspector.Access{Permission: inspector.Break}, nil
}

// hold makes the gate hold the next request.
func (g *gate) hold() { g.armed.Store(true) }

// await waits until a request is held.
func (g *gate) await(b *browser) {
	b.Helper()
	select {
	case <-g.arrived:
	case <-time.After(hang):
		b.Fatalf("no request of %s arrives; the page:\n%s", g.path, b.text())
	}
}

// stuck waits until the card of what is stuck has a text.
func (b *browser) stuck(text string) {
	b.Helper()
	b.until(fmt.Sprintf(`document.querySelector("[aria-labelledby=stuck-title]").innerText.includes(%q)`, text))
}

// The card of what is stuck shows a problem that arises from time alone, in the head of the run and in
// its records, and one whose read was cut off because the page was hidden.
func TestStuckIsLive(t *testing.T) {
	b, g := openGate(t, "/api/summary")
	id := b.store.incident
	b.visit(runPath(string(id)))
	b.stuck("1 timer ")
	acquire := runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "agent-next", TTL: 30 * time.Minute}, Preempt: "test"}
	held := must[runstore.Granted](t)(b.store.AcquireLease(t.Context(), acquire))
	b.until(`document.querySelector("#lease-title + .big").textContent.includes("agent-next")`)
	b.store.engine.Advance(6 * time.Minute)
	b.stuck("it renews the lease, and commits nothing")

	timer := func(name string, in time.Duration) {
		t.Helper()
		at := must[time.Time](t)(b.store.Now(t.Context())).Add(in)
		must[tape.Timer](t)(tape.New(b.store, nil).SetTimer(t.Context(), tape.Timer{Run: id, ID: name, Kind: "reminder", FireAtMS: at.UnixMilli()}, held.Fence()))
	}
	event := func() { // the page reads the summary after an event
		t.Helper()
		batch := runstore.NewBatch(id, held.Fence())
		batch.Append("note", nil)
		must[runstore.Committed](t)(b.store.Commit(t.Context(), batch))
	}
	timer("past", -time.Hour)
	g.hold()
	event()
	g.await(b)
	b.hide(true) // cancels the request
	b.hide(false)
	b.stuck("timer past")

	timer("soon", 10*time.Minute)
	event()
	b.stuck("2 timers ")
	b.store.engine.Advance(11 * time.Minute)
	b.hide(true)
	eval[bool](b, `(() => { const now = performance.now.bind(performance); performance.now = () => now() + 60000; return true })()`)
	b.hide(false)
	b.stuck("timer soon")
}

// The dialog stays open until the outcome of a break is known. The message names the run, and is shown
// although the page has left the view of the run.
func TestBreakIsAwaited(t *testing.T) {
	b, g := openGate(t, "/api/break")
	id := b.store.incident
	b.visit(runPath(string(id)))
	name := eval[string](b, `document.querySelector("main h1").textContent`)
	send := func(token int) {
		t.Helper()
		b.do(chromedp.Click("#break", chromedp.NodeVisible))
		b.until(`document.activeElement.id === "break-token"`)
		g.hold()
		b.press(fmt.Sprintf("%d\tada\tthe worker loops%s", token, kb.Enter))
		g.await(b)
		b.until(`document.querySelector("dialog .buttons button[type=button]").disabled`)
		for range 3 {
			b.press(kb.Escape)
		}
		if !eval[bool](b, `document.querySelector("dialog")?.open === true`) {
			t.Error("the dialog was closed before the outcome was known")
		}
	}
	send(2)
	eval[bool](b, fmt.Sprintf(`(location.hash = "#%s", true)`, runPath("ledger-import")))
	b.until(`document.querySelector("main h1").textContent === "ledger-import" && document.querySelector("main .cards")`)
	g.release <- true
	b.until(fmt.Sprintf(`["The token is now 3", %q].every((part) => document.querySelector("#notices").innerText.includes(part))`, name))
	b.until(`!document.querySelector("dialog")`)
	if eval[bool](b, `document.querySelector("main").innerText.includes("has ended")`) {
		t.Error("the message is shown in the view of another run")
	}
	b.do(chromedp.Click("#notices button"))
	b.until(`document.querySelector("#notices").children.length === 0`)

	acquire := runstore.AcquireRequest{Run: id, LeaseSpec: runstore.LeaseSpec{Owner: "agent-a", TTL: time.Minute}}
	must[runstore.Granted](t)(b.store.AcquireLease(t.Context(), acquire))
	b.visit(runPath(string(id)))
	send(4)
	acquire.Owner, acquire.Preempt = "agent-b", "a deployment"
	must[runstore.Granted](t)(b.store.AcquireLease(t.Context(), acquire))
	g.release <- true
	b.until(fmt.Sprintf(`document.querySelector("dialog").innerText.includes("Run " + %q + ": Nothing was changed")`, name))
	b.press(kb.Escape)
	b.until(`!document.querySelector("dialog")`)
}
