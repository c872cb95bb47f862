// Package alloydb stores runs in AlloyDB for PostgreSQL. It is package postgres over Google's
// connector, cloud.google.com/go/alloydbconn, which finds an instance by its name, encrypts, and
// logs in with IAM or a password. With the AlloyDB Auth Proxy or a plain network path, a host
// replaces the name.
//
// [Open] returns a [Store]. [OpenWithReadPool] returns a [ReadPoolStore], which also implements
// runstore.StaleReader: it reads journals from a read pool while the pool is not too far behind.
// They are two types because callers discover capabilities by type assertion, and a store without a
// read pool must not have this one.
//
// Importing the package registers the scheme alloydb for runstore.Open. README.md in this directory
// describes the URLs, authentication, network paths, the read pool and the effect of a failover on
// leases.
package alloydb
