// The workloads in Go: "go/<row> <TAB> best <TAB> median", nanoseconds an operation. Built and run by Benchmarks/run.
package main

import "os"

func main() {
	o := parse(os.Args[1:])
	o.row("yield", 4_000_000, wall, yield)
	o.row("spawn", 1_000_000, wall, spawn)
	o.row("spawn_join", 500_000, wall, spawnJoin)
	o.row("pingpong", 1_000_000, wall, pingpong)
	o.row("chan_buffered_1p1c", 4_000_000, wall, func(n int) { buffered(n, 128, 1) })
	o.row("chan_buffered_4p4c", 4_000_000, wall, func(n int) { buffered(n, 128, 4) })
	o.row("ring_1000", 1_000_000, wall, func(n int) { ring(1000, n/1000) })
	o.row("sieve_1000", 1, wall, func(int) { expect(sieve(1000), 7919, "the thousandth prime") })
	o.row("skynet_1M", 1, wall, func(int) { expect(skynet(1_000_000), 499_999_500_000, "sum of the leaves") })
	o.row("select2", 1_000_000, wall, selectBetween)
	o.row("mutex_4", 4_000_000, wall, contend)
	// Go always uses all processors, so these workloads are also the peers of our rows on all workers.
	o.row("mutex_4_parallel", 4_000_000, wall, contend)
	o.row("spawn_parallel", 1_000_000, wall, spawn)
	o.row("timers_100k", 100_000, processor, timers)
	parked(o)
}
