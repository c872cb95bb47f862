package tapeserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tapestore/tapestore/runstore"
)

// check is one line of /readyz?verbose. A check that fails makes the server not ready, unless it is
// only reported.
type check struct {
	name, text string
	failed     bool
}

// verbose answers /readyz?verbose: one line for each check, and the verdict of /readyz as the last
// line and as the status.
func (p *Probes) verbose(w http.ResponseWriter, r *http.Request) {
	checks := []check{{name: "started", text: "the store is still being opened", failed: true}}
	if s := p.server.Load(); s != nil {
		checks = s.checks(r.Context())
	}
	var b strings.Builder
	code, verdict := http.StatusOK, "ready"
	for _, c := range checks {
		mark := "+"
		if c.failed {
			mark, code, verdict = "-", http.StatusServiceUnavailable, "not ready"
		}
		fmt.Fprintf(&b, "[%s] %s: %s\n", mark, c.name, c.text)
	}
	answer(w, code, b.String()+verdict+"\n")
}

// checks returns the checks of a server that has its store.
func (s *Server) checks(ctx context.Context) []check {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	all := []check{{name: "started", text: "yes"}, {name: "serving", text: "yes"}}
	if s.drain.Err() != nil {
		all[1] = check{name: "serving", text: "no, shutting down", failed: true}
	}
	began := time.Now()
	err := s.health.ask(ctx)
	took := time.Since(began).Round(10 * time.Microsecond)
	if err != nil {
		return append(all, check{name: "store", text: fmt.Sprintf("does not answer, after %v", took), failed: true}, s.matcherCheck())
	}
	return append(all, check{name: "store", text: fmt.Sprintf("answers, in %v", took)}, s.epochCheck(ctx), s.matcherCheck())
}

// epochCheck reports the epoch. A failure does not make the server unready, since the store answers.
func (s *Server) epochCheck(ctx context.Context) check {
	epochs, ok := runstore.As[runstore.EpochManager](s.store)
	if !ok {
		return check{name: "epoch", text: "none on this engine"}
	}
	epoch, err := s.health.epoch(ctx, epochs)
	if err != nil {
		return check{name: "epoch", text: "cannot be read"}
	}
	return check{name: "epoch", text: fmt.Sprint(int64(epoch))}
}

// epoch reads the current epoch. Concurrent probes share one read, so any number of them costs one,
// as of the pings of ask. A read that does not return stays in flight, and later probes wait for it
// as long as their own contexts allow.
func (h *health) epoch(ctx context.Context, epochs runstore.EpochManager) (runstore.Epoch, error) {
	read := h.epochs.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
		defer cancel()
		changes, err := epochs.Epochs(ctx)
		if err != nil || len(changes) == 0 {
			return runstore.Epoch(0), err
		}
		return changes[len(changes)-1].Epoch, nil
	})
	select {
	case result := <-read:
		return result.Val.(runstore.Epoch), result.Err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// matcherCheck reports the shards of reactions, which other servers may drive instead.
func (s *Server) matcherCheck() check {
	if s.matcher == nil {
		return check{name: "matcher", text: "off"}
	}
	status := s.matcher.Status()
	return check{name: "matcher", text: fmt.Sprintf("holds %d of %d shards, %d stalled", status.Held, status.Shards, status.Stalled)}
}
