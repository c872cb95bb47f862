// Package alloydb starts a stand-in for AlloyDB: its Admin API and its proxy, in front of a
// PostgreSQL server.
package alloydb
