// Package conformance is the suite that proves that a store keeps the contract
// of package runstore. It is importable: an adapter outside this module is
// tested in ten lines.
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
// Cases are data, on a small [T] interface, so that go test and the command
// tapestore conformance run the same ones. Each names the guarantee that it
// proves, and has a Doc: what happens, what must hold, and which bug the case catches.
// It describes a full run; a quick one repeats less. The Doc is shown when the case fails;
// tapestore conformance --list prints all of them.
// A case that needs what the store or the harness does not offer is
// reported as not applicable, with the reason; nothing is skipped silently.
//
// The cases of I7 set the clock of a handle's process wrong, so that an adapter which
// judges an expiry by time.Now is caught. For that the adapter reads the clock of its
// process through a function that its options replace, and the harness hands the suite's
// over:
//
//	OpenSkewed: func(ctx context.Context, clock func() time.Time) (runstore.RunStore, error) {
//		return acme.OpenWith(ctx, dir, acme.Options{Clock: clock})
//	},
//
// A handle that never calls clock fails those cases, because for it they prove nothing. Package runstore/localclock keeps such a clock apart from the measuring of
// durations.
//
// Package conformance/gallery holds stores that each break one rule on purpose;
// a test proves that a named case catches each of them.
package conformance
