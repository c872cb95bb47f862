package protocol

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tapestore/tapestore/tapeserver/tapepb"
)

func valueCases() []Case {
	needs := []Need{NeedValues}
	return []Case{
		{Group: "values", Check: 56, Name: "versions", Needs: needs, Run: valueVersions,
			Doc: "Each write and delete of a value adds 1 to its version; a deleted value leaves a tombstone."},
		{Group: "values", Check: 57, Name: "compare-and-set", Needs: needs, Run: valueCompareAndSet,
			Doc: "A write that names a version is applied only at that version; -1 names none."},
		{Group: "values", Check: 58, Name: "watch", Needs: needs, Run: valueWatch,
			Doc: "WatchValue sends the current value and then each change, with its predecessor."},
	}
}

func (e *Env) write(key, value string, version int64) (*tapepb.ValueRecord, error) {
	return e.Try.WriteValue(context.Background(), &tapepb.WriteValueRequest{Namespace: e.Name("ns"), Key: key, ValueJson: value, IfVersion: version, Writer: "w"})
}

func (e *Env) mustWrite(t T, key, value string, version int64) *tapepb.ValueRecord {
	t.Helper()
	r, err := e.write(key, value, version)
	require(t, err == nil, "WriteValue: %v", err)
	return r
}

func (e *Env) value(t T, key string) *tapepb.GetValueResponse {
	t.Helper()
	r, _ := e.Client.GetValue(t.Context(), &tapepb.GetValueRequest{Namespace: e.Name("ns"), Key: key})
	return r
}

func valueVersions(t T, e *Env) {
	for i, value := range []string{"1", `"two"`} {
		r := e.mustWrite(t, "k", value, -1)
		expect(t, r.GetVersion() == int64(i+1) && r.GetValueJson() == value && r.GetWriter() == "w", "write %d = %v", i+1, r)
		got := e.value(t, "k")
		expect(t, got.GetFound() && got.GetValue().GetValueJson() == value && got.GetValue().GetVersion() == int64(i+1), "GetValue = %v", got)
	}
	d, _ := e.Client.DeleteValue(t.Context(), &tapepb.DeleteValueRequest{Namespace: e.Name("ns"), Key: "k"})
	expect(t, d.GetDeleted() && d.GetVersion() == 3, "DeleteValue = %v, want version 3", d)
	got := e.value(t, "k")
	expect(t, !got.GetFound() && got.GetValue().GetDeleted() && got.GetValue().GetVersion() == 3 && got.GetValue().GetValueJson() == "", "GetValue = %v, want the tombstone", got)
	never := e.value(t, "never")
	expect(t, !never.GetFound() && never.GetValue() == nil, "GetValue of a key without a value = %v", never)
}

func valueCompareAndSet(t T, e *Env) {
	version := e.mustWrite(t, "k", "1", 0).GetVersion()
	refuse := func(at int64) {
		t.Helper()
		_, err := e.write("k", "no", at)
		expect(t, status.Code(err) != codes.OK, "a write at version %d of %d is applied", at, version)
		expect(t, e.value(t, "k").GetValue().GetVersion() == version, "a refused write has changed the value: %v", e.value(t, "k"))
	}
	refuse(0)
	version = e.mustWrite(t, "k", "2", version).GetVersion()
	refuse(version - 1)
	refuse(version + 1)
	expect(t, e.mustWrite(t, "k", "3", -1).GetVersion() == version+1, "an unconditional write adds more than 1 to the version")
	contenders := e.contenders()
	for range e.Rounds(4) { // of concurrent writers at one version, one succeeds
		at := e.value(t, "k").GetValue().GetVersion()
		wins := make([]bool, contenders)
		together(contenders, func(i int) {
			_, err := e.write("k", "raced", at)
			wins[i] = err == nil
		})
		n := 0
		for _, won := range wins {
			if won {
				n++
			}
		}
		expect(t, n == 1 && e.value(t, "k").GetValue().GetVersion() == at+1, "%d of %d writers at version %d succeed, and the value is %v", n, contenders, at, e.value(t, "k"))
	}
}

func valueWatch(t T, e *Env) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	e.mustWrite(t, "k", "70", -1)
	stream, err := e.Try.WatchValue(ctx, &tapepb.WatchValueRequest{Namespace: e.Name("ns"), Key: "k"})
	if err != nil {
		t.Fatalf("WatchValue: %v", err)
	}
	receive := func(version int64, value, before string) {
		t.Helper()
		r, err := stream.Recv()
		require(t, err == nil, "waiting for version %d: %v", version, err)
		v := r.GetValue()
		expect(t, v.GetVersion() == version && v.GetValueJson() == value && v.GetWriter() == "w" && r.GetPrevVersion() == version-1 && r.GetPrevValueJson() == before,
			"the stream sends %v, want version %d", r, version)
	}
	receive(1, "70", "")
	e.mustWrite(t, "k", "90", -1)
	receive(2, "90", "70")
}
