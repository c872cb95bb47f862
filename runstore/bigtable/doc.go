// Package bigtable keeps runs in Bigtable. A run's head, its recent journal and its
// records are one row, and every write under a fence is one conditional mutation of that
// row: its predicate is an exact match of the head cell, which every commit, renewal and
// grant replaces.
package bigtable
