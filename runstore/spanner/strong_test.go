package spanner_test

import (
	"testing"

	"cloud.google.com/go/spanner/apiv1/spannerpb"

	"github.com/tapestore/tapestore/runstore"
)

// Every read but those of StaleReader asks for a strong one: a bound on staleness, or none, lets a replica
// answer that lags behind. The emulator's replicas never do.
func TestReadsAreStrong(t *testing.T) {
	t.Parallel()
	p := newDatabase(t, newest)
	var l ledger
	writer, s := open(t, p), open(t, p, l.keep)
	lease := hold(t, writer, "run")
	b := appending(lease, "event")
	b.Put("record", nil, runstore.Place{Index: "queue", At: runstore.After(0)})
	commit(t, writer, b)
	for name, read := range strongReads(t.Context(), s) {
		reads := 0
		for _, rpc := range l.during(func() {
			if _, err := read(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}) {
			var selector *spannerpb.TransactionSelector
			switch request := rpc.request.(type) {
			case *spannerpb.ExecuteSqlRequest:
				selector = request.Transaction
			case *spannerpb.ReadRequest:
				selector = request.Transaction
			case *spannerpb.BeginTransactionRequest:
				selector = &spannerpb.TransactionSelector{Selector: &spannerpb.TransactionSelector_Begin{Begin: request.Options}}
			default:
				continue
			}
			options := selector.GetSingleUse()
			if begin := selector.GetBegin(); begin != nil {
				options = begin
			}
			if options == nil && selector.GetId() != nil { // of a transaction that began before
				continue
			}
			if reads++; !options.GetReadOnly().GetStrong() {
				t.Errorf("%s: a request asks for %v, want a strong read", name, options)
			}
		}
		if reads == 0 {
			t.Errorf("%s: no read was seen", name)
		}
	}
}
