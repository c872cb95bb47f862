package faultystores

import (
	"context"
	"slices"
	"sync"

	"github.com/tapestore/tapestore/runstore"
)

// termStores list other terms than a run had.
func termStores() []faultyStore {
	return []faultyStore{
		{"terms-of-writers-only", "The terms are those that the events of the run show: a grant that wrote nothing is missing.",
			"I2/terms-list-every-grant-with-its-end", writersOnly},
		{"end-of-term-is-guessed", "A term ends as expired if it had expired when the next grant was made, even if it was released before.",
			"I2/terms-list-every-grant-with-its-end", guessedEnds},
		{"term-per-request", "The repeat of an acquire whose reply was lost adds a second term of its token.",
			"I2/repeats-and-refusals-add-no-term", termPerRequest},
		{"oldest-terms", "A run keeps the terms of its first grants, and drops the later ones when the list is full.",
			"I2/terms-keep-the-newest", oldestTerms},
		{"purge-drops-terms", "A purge removes the terms of the run with everything else.",
			"I2/terms-outlive-a-purge", purgeDropsTerms},
	}
}

// changeTerms replaces what ReadTerms returns.
func (s *store) changeTerms(change func(ctx context.Context, h *handle, id runstore.RunID, terms []runstore.Term) []runstore.Term) {
	s.terms = func(ctx context.Context, h *handle, id runstore.RunID) ([]runstore.Term, error) {
		terms, err := h.Handle.ReadTerms(ctx, id)
		if err == nil {
			terms = change(ctx, h, id, terms)
		}
		return terms, err
	}
}

func writersOnly(s *store) {
	s.changeTerms(func(ctx context.Context, h *handle, id runstore.RunID, terms []runstore.Term) []runstore.Term {
		wrote := map[runstore.Token]bool{}
		for e, err := range runstore.Journal(ctx, h.Handle, id, 1) {
			if err != nil {
				break
			}
			wrote[e.Token] = true
		}
		return slices.DeleteFunc(terms, func(v runstore.Term) bool { return v.End != runstore.EndNone && !wrote[v.Token] })
	})
}

func guessedEnds(s *store) {
	s.changeTerms(func(_ context.Context, _ *handle, _ runstore.RunID, terms []runstore.Term) []runstore.Term {
		for i := range terms[:max(0, len(terms)-1)] {
			if v := &terms[i]; v.End == runstore.EndReleased {
				v.End, v.EndedAt = runstore.EndExpired, terms[i+1].GrantedAt
			}
		}
		return terms
	})
}

func termPerRequest(s *store) {
	var mu sync.Mutex
	repeats := map[runstore.RunID]map[runstore.Token]bool{}
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		granted, err := ownAcquire(ctx, h, req)
		if err == nil && granted.Committed.Replayed {
			mu.Lock()
			defer mu.Unlock()
			if repeats[req.Run] == nil {
				repeats[req.Run] = map[runstore.Token]bool{}
			}
			repeats[req.Run][granted.Token] = true
		}
		return granted, err
	}
	s.changeTerms(func(_ context.Context, _ *handle, id runstore.RunID, terms []runstore.Term) (all []runstore.Term) {
		mu.Lock()
		defer mu.Unlock()
		for _, v := range terms {
			if all = append(all, v); repeats[id][v.Token] {
				all = append(all, v)
			}
		}
		return all
	})
}

func oldestTerms(s *store) {
	var mu sync.Mutex
	first := map[runstore.RunID][]runstore.Term{}
	s.acquire = func(ctx context.Context, h *handle, req runstore.AcquireRequest) (runstore.Granted, error) {
		granted, err := ownAcquire(ctx, h, req)
		if terms, failed := h.Handle.ReadTerms(ctx, req.Run); err == nil && failed == nil && len(terms) < runstore.RememberedTerms {
			mu.Lock()
			defer mu.Unlock()
			first[req.Run] = terms
		}
		return granted, err
	}
	s.changeTerms(func(_ context.Context, _ *handle, id runstore.RunID, terms []runstore.Term) []runstore.Term {
		mu.Lock()
		defer mu.Unlock()
		if len(terms) < runstore.RememberedTerms {
			return terms
		}
		return append(slices.Clone(first[id]), terms[len(terms)-1])
	})
}

func purgeDropsTerms(s *store) {
	var mu sync.Mutex
	purged := map[runstore.RunID]runstore.Token{}
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		done, err := h.Handle.Commit(ctx, b)
		if err == nil && b.Purge {
			mu.Lock()
			defer mu.Unlock()
			purged[b.Run()] = s.current(b.Run()).Token
		}
		return done, err
	}
	s.changeTerms(func(_ context.Context, _ *handle, id runstore.RunID, terms []runstore.Term) []runstore.Term {
		mu.Lock()
		defer mu.Unlock()
		return slices.DeleteFunc(terms, func(v runstore.Term) bool { return v.Token <= purged[id] })
	})
}
