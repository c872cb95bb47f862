module example.com/acme

go 1.26.0

require github.com/tapestore/tapestore v0.0.0

require github.com/anishathalye/porcupine v1.3.1 // indirect

replace github.com/tapestore/tapestore => ../..
