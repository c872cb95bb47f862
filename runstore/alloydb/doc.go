// Package alloydb keeps runs in AlloyDB for PostgreSQL: it is package postgres over
// Google's connector, cloud.google.com/go/alloydbconn, which finds an instance by its
// name, encrypts, and logs in by IAM or with a password. Where the AlloyDB Auth Proxy
// or a plain network path is in use, a host does instead of the name.
//
// [Open] returns a [Store]. [OpenWithReadPool] returns a [ReadPoolStore], which has
// runstore.StaleReader besides: journals are read from a read pool as long as that is
// not too far behind. They are two types because callers find capabilities by type
// assertion, and a store without a read pool has none to offer.
//
// Importing the package registers the scheme alloydb for runstore.Open. The page
// beside it (README.md) tells the URLs, authentication, network paths, the read pool
// and what a failover means for leases.
package alloydb
