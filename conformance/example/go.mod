module example.com/boltstore

go 1.26.0

require (
	github.com/tapestore/tapestore v0.0.0
	go.etcd.io/bbolt v1.5.0
)

replace github.com/tapestore/tapestore => ../..
