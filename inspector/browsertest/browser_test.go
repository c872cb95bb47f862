package browsertest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tapestore/tapestore/inspector"
)

// images is where the screenshots for the documentation go.
const images = "../../docs/images"

// findChromium returns the path of a Chromium. Without one the test fails on a machine that has to have
// one (CI=true), and is skipped on others.
func findChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	const missing = "there is no Chromium on this machine (Debian: apt-get install chromium)"
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// hang ends a wait for what would never come.
const hang = 5 * time.Minute

// browser is a tab with the inspector of a store.
type browser struct {
	*testing.T
	ctx      context.Context
	url      string
	store    *store
	watching *atomic.Int64 // requests of the page that wait for a change

	mu     sync.Mutex
	faults []string // uncaught errors and violations of the policy
}

// open starts a Chromium and a server.
func open(t *testing.T, access inspector.Access) *browser {
	t.Helper()
	return openWith(t, func(*http.Request) (inspector.Access, error) { return access, nil })
}

// openWith starts a Chromium and a server with a hook for authorisation.
func openWith(t *testing.T, authorize func(*http.Request) (inspector.Access, error)) *browser {
	t.Helper()
	chromium := findChromium(t)
	b := &browser{T: t, store: newStore(t), watching: &atomic.Int64{}}
	handler := inspector.New(b.store, &inspector.Options{
		Authorize: authorize,
		Logger:    slog.New(slog.DiscardHandler),
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			b.watching.Add(1)
			defer b.watching.Add(-1)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	b.url = server.URL

	// A Chromium that runs as root, as in a container, has no sandbox. It sees this page only.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(hang),
		chromedp.WindowSize(1280, 860), chromedp.UserDataDir(t.TempDir()), chromedp.Flag("force-color-profile", "srgb"))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b.ctx = ctx
	// The first action starts the browser, whose life is that of this context.
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 860)); err != nil {
		t.Fatal(err)
	}
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			text := e.ExceptionDetails.Text
			if e.ExceptionDetails.Exception != nil {
				text += " " + e.ExceptionDetails.Exception.Description
			}
			b.faults = append(b.faults, text)
		case *log.EventEntryAdded:
			if e.Entry.Source == log.EntrySourceSecurity || e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
				b.faults = append(b.faults, e.Entry.Text)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, fault := range b.faults {
			t.Errorf("the page reports: %s", fault)
		}
	})
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, hang)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatalf("%v\nthe page:\n%s", err, b.text())
	}
}

// text returns the text of the page, for messages.
func (b *browser) text() (text string) {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, _ = chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	return text
}

// eval returns the value of an expression.
func eval[R any](b *browser, expression string) R {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, hang)
	defer cancel()
	result, err := chromedp.Run(ctx, chromedp.Evaluate[R](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%s: %v\nthe page:\n%s", expression, err, b.text())
	}
	return result
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, hang)
	defer cancel()
	wait := fmt.Sprintf(`new Promise((done) => { const look = () => { let ok = false; try { ok = !!(%s) } catch {} if (ok) done(true); else setTimeout(look, 10); }; look(); })`, expression)
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](wait, chromedp.EvalAwaitPromise)); err != nil {
		b.Fatalf("waiting for %s: %v\nthe page:\n%s", expression, err, b.text())
	}
}

// visit shows a view, and waits for its heading.
func (b *browser) visit(path string) {
	b.Helper()
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(b.url+"/#"+path))
	b.until(`document.querySelector("main h1")`)
}

// has waits until the page has a text.
func (b *browser) has(text string) {
	b.Helper()
	b.until(fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, text))
}

// press presses keys.
func (b *browser) press(keys string) { b.Helper(); b.do(chromedp.KeyEvent(keys)) }

// tabTo presses the tab key until the element with the focus fulfils a condition on el.
func (b *browser) tabTo(condition string) {
	b.Helper()
	for range 200 {
		b.press(kb.Tab)
		if eval[bool](b, fmt.Sprintf(`((el) => %s)(document.activeElement)`, condition)) {
			return
		}
	}
	b.Fatalf("the tab key reaches no element with %s", condition)
}

// shoot takes a screenshot for the documentation if SCREENSHOTS is set, and checks its size anyway.
func (b *browser) shoot(name string) {
	b.Helper()
	b.until(`document.fonts.status === "loaded"`)
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	shot = reduce(b.T, shot)
	if len(shot) > 150_000 {
		b.Errorf("the screenshot %s has %d bytes, the limit of the documentation is 150,000", name, len(shot))
	}
	if os.Getenv("SCREENSHOTS") == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(images, name), shot, 0o644); err != nil {
		b.Fatal(err)
	}
}

// fits checks that the page is not wider than the window.
func (b *browser) fits() {
	b.Helper()
	if over := eval[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
		widest := eval[string](b, `[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className).slice(0, 8).join(", ")`)
		b.Errorf("the page at %s is %d pixels too wide: %s", eval[string](b, `location.hash`), over, widest)
	}
}

func (b *browser) scheme(scheme string) {
	b.Helper()
	params := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, params); err != nil {
		b.Fatal(err)
	}
}

// hide makes the page believe that it is hidden, or visible again.
func (b *browser) hide(hidden bool) {
	b.Helper()
	eval[bool](b, fmt.Sprintf(`(Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange")))`, hidden))
}

// runPath returns the address of a run.
func runPath(id string) string { return "/run/" + url.PathEscape(id) }

// rows is the number of runs that the list shows.
const rows = `document.querySelectorAll("main table.rows tbody tr").length`

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// reduce returns a screenshot with 256 colors, which has a third of the bytes: of all colors that are
// nearly the same, the one that it has most often.
func reduce(t *testing.T, data []byte) []byte {
	t.Helper()
	full, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	bounds, often := full.Bounds(), map[color.Color]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			often[full.At(x, y)]++
		}
	}
	alike := map[[3]uint32]color.Color{}
	for c, n := range often {
		r, g, b, _ := c.RGBA()
		key := [3]uint32{r >> 11, g >> 11, b >> 11}
		if n > often[alike[key]] {
			alike[key] = c
		}
	}
	colors := slices.SortedFunc(maps.Values(alike), func(a, b color.Color) int { return cmp.Compare(often[b], often[a]) })
	reduced := image.NewPaletted(bounds, colors[:min(len(colors), 256)])
	nearest := map[color.Color]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := full.At(x, y)
			index, ok := nearest[c]
			if !ok {
				index = uint8(reduced.Palette.Index(c))
				nearest[c] = index
			}
			reduced.SetColorIndex(x, y, index)
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
