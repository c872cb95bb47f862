package alloydb

// LagOf tells how far a node is behind.
var LagOf = lagOf
