package protocol

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func cursorCases() []Case {
	return []Case{
		{Group: "T6", Name: "cursors-skip-and-repeat-nothing", Needs: []Need{NeedFeeds, NeedValues}, Run: func(t T, e *Env) { cursors(t, e, e.Process, e.NewProcess(t)) },
			Doc: "While many clients write, a reader that stays and one that reconnects after every entry receive each entry once, in one order, with numbers below 2^53; and so does a reader that later resumes after any of them."},
		{Group: "T6", Name: "cursors-are-one-on-all-servers", Needs: []Need{NeedFeeds, NeedValues, NeedBeside}, Run: func(t T, e *Env) {
			cursors(t, e, e.Process, e.process(t, e.target.Beside(t)))
		}, Doc: "The same over two servers on one store: each reader reads at one, and resumes at the other."},
	}
}

// cursors writes through all servers while readers follow the feed, and then resumes after every
// entry.
func cursors(t T, e *Env, servers ...*Process) {
	origin := e.bySubject(t, "/tape/run/running/"+e.Name("app")+"/**", "", 0)
	defer origin.cancel()
	writers, rounds := e.contenders(), e.RoundsSquared(2)
	runs := make([]string, writers)
	for i := range runs {
		runs[i] = e.Begin(t, servers[i%len(servers)], fmt.Sprint(i)).GetRunId()
	}
	own := func(entry *tapepb.EventEntry) bool {
		return slices.Contains(runs, entry.GetRunId()) || strings.HasPrefix(entry.GetSubject(), "/tape/value/changed/"+e.Name("ns")+"/")
	}
	first := origin.next(t, own) // the first entry of any of the case's runs
	start := first.GetGlobalSeq()
	total := writers - 1 + writers*rounds*2 // the first entries of the other runs, and all further writes
	// final reports whether an entry is the last of its run or value. A reader stops when it has
	// them all, so that it does not block on an entry that a server has omitted.
	final := func(entry *tapepb.EventEntry) bool {
		return entry.GetSeq() == int64(rounds+1) && entry.GetRunId() != "" || versionIn(entry) == int64(rounds)
	}
	readers := make([][]*tapepb.EventEntry, 2*len(servers))
	var reading sync.WaitGroup
	for i := range readers {
		reading.Go(func() {
			readers[i] = followed(t, servers, i/len(servers), i%len(servers) == 0, start, own, final, 2*writers)
		})
	}
	together(writers, func(i int) {
		p := servers[i%len(servers)]
		for n := range rounds {
			_, err := p.Try.RecordDecision(t.Context(), &tapepb.RecordDecisionRequest{RunId: runs[i], DecisionIndex: int64(n)})
			require(t, err == nil, "RecordDecision: %v", err)
			_, err = p.Try.WriteValue(t.Context(), &tapepb.WriteValueRequest{Namespace: e.Name("ns"), Key: fmt.Sprint(i), ValueJson: "1", IfVersion: int64(n)})
			require(t, err == nil, "WriteValue: %v", err)
		}
	})
	reading.Wait()
	all := readers[0]
	expect(t, len(all) == total, "a reader has %d of %d entries", len(all), total)
	require(t, len(all) > 0, "a reader has no entries")
	next := map[string]int64{} // the next expected seq or version, by run or value
	for _, id := range runs {
		next[id] = 1
	}
	next[first.GetRunId()] = 2
	for _, entry := range all {
		name, number := entry.GetRunId(), entry.GetSeq()
		if name == "" {
			name, number = entry.GetSubject(), versionIn(entry)
			next[name] = max(next[name], 1)
		}
		expect(t, number == next[name], "after entry %d of %s comes %d", next[name]-1, name, number)
		next[name] = number + 1
	}
	for i, r := range readers[1:] {
		expect(t, slices.Equal(numbers(r), numbers(all)), "reader 0 has the entries %v, reader %d has %v", numbers(all), i+1, numbers(r))
	}
	for i, entry := range all[:len(all)-1] {
		f := servers[i%len(servers)].bySubject(t, "/tape/**", "", entry.GetGlobalSeq())
		got := f.next(t, own)
		f.cancel()
		expect(t, got.GetGlobalSeq() == all[i+1].GetGlobalSeq(), "behind %d comes %d, and while it was written %d came", entry.GetGlobalSeq(), got.GetGlobalSeq(), all[i+1].GetGlobalSeq())
	}
}

// versionIn returns the version in an entry of a value, or 0 for any other entry.
func versionIn(e *tapepb.EventEntry) int64 {
	var p struct{ Version int64 }
	if e.GetKind() != "value" || json.Unmarshal([]byte(e.GetPayloadJson()), &p) != nil {
		return 0
	}
	return p.Version
}

// followed returns the case's own entries after position start, up to the nth final entry, as one
// reader receives them: either on one stream of one server, or on a new stream for each entry,
// alternating between the servers.
func followed(t T, servers []*Process, at int, stay bool, start int64, own, final func(*tapepb.EventEntry) bool, n int) (all []*tapepb.EventEntry) {
	t.Helper()
	f := servers[at%len(servers)].bySubject(t, "/tape/**", "", start)
	for {
		entry := f.next(t, own)
		all = append(all, entry)
		if final(entry) {
			n--
		}
		if n == 0 {
			f.cancel()
			return all
		}
		if !stay {
			f.cancel()
			f = servers[(at+len(all))%len(servers)].bySubject(t, "/tape/**", "", f.last)
		}
	}
}

func numbers(entries []*tapepb.EventEntry) (all []int64) {
	for _, e := range entries {
		all = append(all, e.GetGlobalSeq())
	}
	return all
}
