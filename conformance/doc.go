// Package conformance is the test suite for the contract of package runstore: it proves that a
// store keeps each guarantee, I1 to I13. An adapter outside this module imports the suite and runs
// it in ten lines:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{
//			New: func(t conformance.T) conformance.Instance {
//				dir := t.TempDir()
//				return conformance.Instance{
//					Open: func(ctx context.Context) (runstore.RunStore, error) { return acme.Open(ctx, dir) },
//				}
//			},
//		})
//	}
//
// Package conformance/harness documents what an adapter's author fills in. This package has its
// names as aliases, runs the suite ([Run], [RunCases], [Execute]) and lists its cases ([Cases]).
//
// Cases are data on a small [T] interface, so go test and the command tapestore conformance run the
// same cases. Each [Case] names the guarantee that it proves. Its Doc says what happens in a full
// run, what must hold, and which bug the case catches; a quick run repeats less. The Doc is shown
// when the case fails, and tapestore conformance --list prints every Doc. A case whose needs the
// store or the harness does not meet is reported as not applicable, with the reason; no case is
// skipped silently.
//
// The cases of I7 set the clock of a handle's process wrong, to catch an adapter that judges an
// expiry by time.Now. Such an adapter reads its process's clock through a function that its options
// replace, and the harness passes the suite's function on:
//
//	OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
//		return acme.OpenWith(ctx, dir, acme.Options{Clock: clock})
//	},
//
// A handle that never calls clock fails those cases, because a case proves nothing about a clock
// that was not read. Package runstore/localclock separates such a clock from the measuring of
// durations.
//
// Package conformance/faultystores holds faulty stores that each break one rule on purpose; a test
// proves that a named case catches each of them.
package conformance
