package faultystores

import (
	"context"
	"slices"
	"strings"

	"github.com/tapestore/tapestore/runstore"
)

// inputStores validate or store input wrongly.
func inputStores() []faultyStore {
	return []faultyStore{
		{"limits-not-checked", "Payloads beyond the limit are cut to it and stored.",
			"I12/payloads-beyond-the-limit-are-refused", payloadsCut},
		{"names-cut", "Names beyond the limit are cut to it, and two runs become one.",
			"I12/names-beyond-the-limit-are-refused", namesCut},
		{"ids-compared-in-part", "The last byte of a long batch id is not compared.",
			"I12/longest-names-work", idsCut},
		{"ttl-clamped", "A TTL out of range is taken for the nearest one in range.",
			"I12/ttl-is-bounded", ttlClamped},
		{"unguarded-by-omission", "A batch without any guard is applied.",
			"I12/malformed-batches-are-refused", omission},
		{"empty-is-absent", "A record with an empty value is taken for none.",
			"I12/empty-payloads-stay-empty", emptyAbsent},
		{"id-ends-at-nul", "A run id ends at its first zero byte.",
			"I12/run-ids-of-any-byte-stay-apart", nulEnds},
	}
}

func payloadsCut(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		b.Events = slices.Clone(b.Events)
		for i, e := range b.Events {
			b.Events[i].Data = e.Data[:min(len(e.Data), runstore.MaxEventData)]
		}
		return h.Handle.Commit(ctx, b)
	}
}

func namesCut(s *store) {
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		spec.ID = spec.ID[:min(len(spec.ID), runstore.MaxRunID)]
		return h.Handle.CreateRun(ctx, spec)
	}
}

func idsCut(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		b.ID = b.ID[:min(len(b.ID), runstore.MaxGrantID-1)]
		return h.Handle.Commit(ctx, b)
	}
}

func ttlClamped(s *store) {
	s.renew = func(ctx context.Context, h *handle, req runstore.RenewRequest) (runstore.Renewed, error) {
		req.TTL = min(max(req.TTL, runstore.MinTTL), runstore.MaxTTL)
		return h.Handle.RenewLease(ctx, req)
	}
}

func omission(s *store) {
	s.commit = func(ctx context.Context, h *handle, b runstore.Batch) (runstore.Committed, error) {
		if g := b.Guards(); g.Fence.IsZero() && len(g.Versions) == 0 && g.NextSeq == 0 && len(g.Statuses) == 0 {
			b = reguarded(b, g)
		}
		return h.Handle.Commit(ctx, b)
	}
}

func emptyAbsent(s *store) {
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		records, err := h.Handle.ReadRecords(ctx, id, q)
		return slices.DeleteFunc(records, func(r runstore.Record) bool { return len(r.Value) == 0 }), err
	}
}

func nulEnds(s *store) {
	s.create = func(ctx context.Context, h *handle, spec runstore.RunSpec) (runstore.Created, error) {
		if cut, _, found := strings.Cut(string(spec.ID), "\x00"); found && cut != "" {
			spec.ID = runstore.RunID(cut)
		}
		return h.Handle.CreateRun(ctx, spec)
	}
}

func prefixFolded(s *store) {
	s.records = func(ctx context.Context, h *handle, id runstore.RunID, q runstore.RecordQuery) ([]runstore.Record, error) {
		if len(q.Keys) > 0 || q.Prefix == "" || q.Limit < 1 {
			return h.Handle.ReadRecords(ctx, id, q)
		}
		var found []runstore.Record
		for r, err := range runstore.Records(ctx, h.Handle, id, "") {
			if err != nil {
				return nil, err
			}
			n := len(q.Prefix)
			if r.Key > q.After && len(r.Key) >= n && strings.EqualFold(string(r.Key[:n]), string(q.Prefix)) && len(found) < q.Limit {
				found = append(found, r)
			}
		}
		return found, nil
	}
}
