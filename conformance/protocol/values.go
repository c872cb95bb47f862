package protocol

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func valueGuaranteeCases() []Case {
	return []Case{
		{Group: "T8", Name: "every-version-is-watched-in-order", Needs: []Need{NeedValues}, Run: everyVersionWatched,
			Doc: "While many clients write and delete one value, each watcher receives every version above its first once, in order, with its true predecessor."},
		{Group: "T8", Name: "increments-add-up", Needs: []Need{NeedValues}, Run: incrementsAddUp,
			Doc: "Clients that read a value and write it at the version they read lose no increment."},
	}
}

// watchValue watches a value from the given version, and returns a function that returns the next
// event.
func (e *Env) watchValue(t T, ctx context.Context, key string, from int64) func() *tapepb.ValueEvent {
	t.Helper()
	stream, err := e.Try.WatchValue(ctx, &tapepb.WatchValueRequest{Namespace: e.Name("ns"), Key: key, FromVersion: from})
	require(t, err == nil, "WatchValue: %v", err)
	_, err = stream.Header()
	require(t, err == nil, "WatchValue: %v", err)
	return func() *tapepb.ValueEvent {
		t.Helper()
		r, err := stream.Recv()
		require(t, err == nil, "WatchValue from %d: %v", from, err)
		return r
	}
}

func everyVersionWatched(t T, e *Env) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	const before = 3
	for i := range before {
		e.mustWrite(t, "k", fmt.Sprintf("before %d", i), int64(i))
	}
	writers, each := e.contenders(), e.Rounds(8)
	last := int64(before + writers*each)
	all, late := e.watchValue(t, ctx, "k", 0), e.watchValue(t, ctx, "k", before-1)
	written := make([]string, last+1) // by version; each is written once
	together(writers+1, func(i int) {
		if i == writers { // the reader, which runs while the writers write
			prev := &tapepb.ValueRecord{}
			for version := int64(1); version <= last; version++ {
				r := all()
				v := r.GetValue()
				require(t, v.GetVersion() == version && r.GetPrevVersion() == prev.GetVersion() && r.GetPrevValueJson() == prev.GetValueJson(),
					"after version %d, %q, the stream sends %v", prev.GetVersion(), prev.GetValueJson(), r)
				prev = v
			}
			return
		}
		for n := range each {
			if i == 0 && n%2 == 1 {
				d, err := e.Try.DeleteValue(t.Context(), &tapepb.DeleteValueRequest{Namespace: e.Name("ns"), Key: "k"})
				require(t, err == nil && d.GetDeleted(), "DeleteValue = %v, %v", d, err)
				continue
			}
			value := fmt.Sprintf("%d of %d", n, i)
			r, err := e.write("k", value, -1)
			require(t, err == nil, "WriteValue: %v", err)
			written[r.GetVersion()] = value
		}
	})
	var prev *tapepb.ValueRecord
	for version := int64(before); version <= last; version++ {
		r := late()
		v := r.GetValue()
		expect(t, v.GetVersion() == version && r.GetPrevVersion() == version-1, "the stream from version %d sends %v, want version %d", before-1, r, version)
		expect(t, version == before || v.GetDeleted() || v.GetValueJson() == written[version], "version %d is %v, and was written as %q", version, v, written[version])
		expect(t, prev == nil || r.GetPrevValueJson() == prev.GetValueJson(), "version %d follows %q, says %v", version, prev.GetValueJson(), r)
		prev = v
	}
}

func incrementsAddUp(t T, e *Env) {
	writers, each := e.contenders(), e.Rounds(4)
	e.mustWrite(t, "n", "0", 0)
	together(writers, func(int) {
		for done := 0; done < each; {
			at, err := e.Try.GetValue(t.Context(), &tapepb.GetValueRequest{Namespace: e.Name("ns"), Key: "n"})
			require(t, err == nil, "GetValue: %v", err)
			n := 0
			_, err = fmt.Sscan(at.GetValue().GetValueJson(), &n)
			require(t, err == nil, "the value is %v", at)
			_, err = e.write("n", fmt.Sprint(n+1), at.GetValue().GetVersion())
			require(t, err == nil || status.Code(err) == codes.Internal, "WriteValue: %v", err)
			if err == nil {
				done++
			}
		}
	})
	got := e.value(t, "n").GetValue()
	expect(t, got.GetValueJson() == fmt.Sprint(writers*each) && got.GetVersion() == int64(writers*each+1),
		"after %d increments the value is %v", writers*each, got)
}
