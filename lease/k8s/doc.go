// Package k8s lets Kubernetes controllers elect their leader on a store whose every write checks the
// leader's fencing token. A [Lock] is a resourcelock.Interface of client-go, so a controller keeps
// the election library that it has (client-go's leaderelection, controller-runtime) and gets what
// that library alone does not give: a token, and a store that refuses the writes of a leader that
// was replaced.
//
//	lock, err := k8s.New(store, "my-controller", hostname)
//	…
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
//		ReleaseOnCancel: true,
//		Callbacks: leaderelection.LeaderCallbacks{
//			OnStartedLeading: func(ctx context.Context) {
//				fence, _ := lock.Fence()
//				batch := runstore.NewBatch("work", …) // or store.FenceTx, for tables of your own
//			},
//			OnStoppedLeading: func() { os.Exit(0) },
//		},
//	})
//
// # What it guarantees
//
//   - The store grants the lease, by its own clock, to one contender at a time. The elector's own
//     judgement, which trusts the contenders' clocks to run at the same rate, only delays requests.
//   - A write that presents [Lock.Fence] is applied only while that grant is the current one. A
//     leader that was stopped beyond its lease and wakes changes nothing.
//   - A leader whose lease was lost gets no other grant before its elector has ended the leadership, so
//     work that ends with the context of OnStartedLeading never finds the fence of a later grant in
//     [Lock.Fence].
//   - The LeaderElectionRecord that client-go's tools read is stored with the lease, in the same
//     atomic step, under [RecordKey].
//
// # What it does not guarantee
//
// client-go does not wait for OnStartedLeading. If the process goes on after OnStoppedLeading and runs another
// elector with the lock, do so only after OnStartedLeading has returned: what still works would find the fence of
// the next leadership in [Lock.Fence], or would share it, if the lease was never lost.
//
// client-go ends the context of OnStartedLeading when it cannot renew within RenewDeadline. A process
// that is paused does not notice in time, and what it then writes without the fence, for example to
// the Kubernetes API, is stored. With a Lease object of Kubernetes as the lock, that is so for every
// write: no token exists that anything could check. The test TestPausedLeader runs both side by side.
package k8s
