package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync"
)

// VmRSS in bytes.
func resident() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	kilobytes := 0
	for _, line := range strings.Split(string(status), "\n") {
		if strings.HasPrefix(line, "VmRSS:") {
			fmt.Sscanf(line, "VmRSS: %d kB", &kilobytes)
		}
	}
	return kilobytes << 10
}

// A million goroutines that wait. Each round in a process of its own, because the first one is what counts.
func parked(o options) {
	rows := []string{"parked_1M_bytes", "parked_1M_start"}
	if !o.wants(rows[0]) && !o.wants(rows[1]) {
		return
	}
	if os.Getenv("PEERS_PARKED_CHILD") != "" {
		count := 1_000_000
		if o.quick {
			count /= 10
		}
		bytes, start := measureParked(count)
		fmt.Println(bytes, start)
		return
	}
	var values [2][]float64
	for r := 0; r < o.rounds; r++ {
		child := exec.Command(os.Args[0], os.Args[1:]...)
		child.Env = append(os.Environ(), "PEERS_PARKED_CHILD=1")
		child.Args = []string{os.Args[0], "--only", rows[0]}
		if o.quick {
			child.Args = append(child.Args, "--quick")
		}
		printed, err := child.Output()
		if err != nil {
			panic(err)
		}
		var bytes, start float64
		fmt.Sscan(string(printed), &bytes, &start)
		values[0], values[1] = append(values[0], bytes), append(values[1], start)
	}
	for i, row := range rows {
		print(row, values[i])
	}
}

func measureParked(n int) (bytes, start float64) {
	debug.FreeOSMemory()
	before := resident()
	gate := make(chan bool)
	var up, down sync.WaitGroup
	up.Add(n)
	down.Add(n)
	began := wall()
	for i := 0; i < n; i++ {
		go func() {
			up.Done()
			<-gate
			down.Done()
		}()
	}
	up.Wait()
	start = float64(wall()-began) / float64(n)
	bytes = float64(resident()-before) / float64(n)
	close(gate)
	down.Wait()
	return
}
