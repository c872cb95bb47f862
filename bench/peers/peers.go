package peers

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/tapestore/tapestore/bench"
	"github.com/tapestore/tapestore/bench/engines"
	postgresemulator "github.com/tapestore/tapestore/emulators/postgres"
)

func init() { engines.RegisterPeers("other lease libraries", attach) }

// Starters returns the starters of package bench/engines, with the peers beside PostgreSQL.
func Starters() []bench.Starter { return engines.Starters() }

// The names of the systems.
const (
	sysEtcd       = "etcd"
	sysElection   = "etcd election"
	sysAdvisory   = "advisory lock"
	sysRowLock    = "select for update"
	sysLeaseRow   = "lease row by hand"
	sysLeader     = "river leader"
	sysJob        = "river job"
	sysKubernetes = "client-go"
)

// attach adds the peers to the target of a PostgreSQL server, and closes them with the target.
func attach(ctx context.Context, server *postgresemulator.Server, target *bench.Target) error {
	db, err := openDatabase(ctx, server)
	if err != nil {
		return err
	}
	etcd, river := &etcd{}, newRiver(db)
	target.Strategies = append(target.Strategies,
		bench.Strategy{System: sysAdvisory, Name: "pg_advisory_lock", New: db.advisoryLock(false)},
		bench.Strategy{System: sysAdvisory, Name: "pg_try_advisory_lock, polling", New: db.advisoryLock(true)},
		bench.Strategy{System: sysRowLock, Name: "one transaction", New: db.rowLock},
		bench.Strategy{System: sysLeaseRow, Name: "compare-and-swap, polling", New: db.leaseRow},
		bench.Strategy{System: sysLeader, Name: "the elector's requests", New: river.leader},
		bench.Strategy{System: sysJob, Name: "claim and complete", New: river.jobs},
		bench.Strategy{System: sysEtcd, Name: "Mutex", New: etcd.contest(false, etcdMutex)},
		bench.Strategy{System: sysEtcd, Name: "Mutex, writes if IsOwner", New: etcd.contest(true, etcdMutex)},
		bench.Strategy{System: sysElection, Name: "Election", New: etcd.contest(false, etcdElection)},
		bench.Strategy{System: sysKubernetes, Name: "LeaderElector", New: leaderElection},
	)
	target.Peers = append(target.Peers, systems(target.System, db.version)...)
	rest := target.Rest
	target.Rest = func() error {
		err := etcd.close() // its ticks and syncs would be part of later measurements
		if rest != nil {
			err = errors.Join(err, rest())
		}
		return err
	}
	stop := target.Close
	target.Close = func() error {
		err := errors.Join(etcd.close(), db.close())
		if stop != nil {
			err = errors.Join(err, stop())
		}
		return err
	}
	return nil
}

// systems describes the peers beside a PostgreSQL store.
func systems(store bench.System, version string) []bench.System {
	onPostgres := bench.System{
		Engine: "postgres", Version: version, Tier: store.Tier, Durable: true, Peer: true,
		Topology: "the server of the store, over TCP on loopback, pool of 16; every commit is synced",
	}
	pgx := moduleVersion("github.com/jackc/pgx/v5")
	postgres := func(name, driver, topology string, g bench.Guarantee) bench.System {
		s := onPostgres
		s.Name, s.Guarantee = name, g
		s.Version += ", " + driver
		s.Topology += topology
		return s
	}
	riverVersion := "river " + moduleVersion("github.com/riverqueue/river")
	etcdSystem := bench.System{
		Engine: "etcd", Version: moduleVersion("go.etcd.io/etcd/server/v3"), Tier: "embedded", Durable: true, Peer: true,
		Topology: "one member in this process, over gRPC on loopback; every write is synced",
	}
	mutex, election := etcdSystem, etcdSystem
	mutex.Name, election.Name = sysEtcd, sysElection
	mutex.Guarantee = bench.Guarantee{
		Token:    "not checked for a plain Put; the server checks a transaction on the condition IsOwner",
		Clock:    "the server's, which expires the session's lease",
		InFlight: "a plain Put is stored; a transaction on IsOwner is refused",
	}
	election.Guarantee = bench.Guarantee{
		Token:    "not checked for a plain Put",
		Clock:    "the server's, which expires the session's lease",
		InFlight: "stored",
	}
	return []bench.System{
		postgres(sysAdvisory, "pgx "+pgx, "; locks on a pool of 16 sessions of their own", bench.Guarantee{
			Token:    "there is none",
			Clock:    "none: the lock is held until its session ends, and a paused process keeps its session",
			InFlight: "stored if it is written through another session than that of the lock",
		}),
		postgres(sysRowLock, "pgx "+pgx, "", bench.Guarantee{
			Token:    "the server: lock and write are one transaction; what leaves the transaction is not checked",
			Clock:    "none: the lock is held until the transaction ends, and a paused process keeps it open",
			InFlight: "refused once the server has ended the session; until then there is no takeover",
		}),
		postgres(sysLeaseRow, "pgx "+pgx, "; polls at random below 10 ms", bench.Guarantee{
			Token:    "not checked",
			Clock:    "the server's",
			InFlight: "stored",
		}),
		postgres(sysLeader, riverVersion, "; the leader's table is unlogged: it is empty after a crash of the server, and its own commits wait for no disk", bench.Guarantee{
			Token:    "not checked",
			Clock:    "the server's; a leader that runs also stops by its own clock",
			InFlight: "stored",
		}),
		postgres(sysJob, riverVersion, "; without a client's cooldown of 100 ms between fetches", bench.Guarantee{
			Token:    "not checked: a job is completed if it runs, whichever attempt runs it",
			Clock:    "the rescuer's, by default an hour after the claim",
			InFlight: "stored, and it completes the job under its new worker",
		}),
		mutex, election,
		{
			Name: sysKubernetes, Engine: "client-go", Version: moduleVersion("k8s.io/client-go"), Tier: "embedded", Peer: true,
			Topology: "an API server object in this process, nothing on disk, without a network; RetryPeriod of 4 ms in place of 2 s",
			Guarantee: bench.Guarantee{
				Token:    "not checked, as its documentation says; the lease itself changes by its resource version",
				Clock:    "each candidate's own, from when it last saw the lease change",
				InFlight: "stored",
			},
		},
	}
}

// moduleVersion returns the version of a module that this program is built from, or "unknown" in a
// test, whose build information names no modules.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "unknown"
}
