package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Two goroutines that give way to each other.
func yield(n int) {
	var done sync.WaitGroup
	var turns int64
	for k := 0; k < 2; k++ {
		done.Add(1)
		go func() {
			for i := 0; i < n/2; i++ {
				runtime.Gosched()
			}
			atomic.AddInt64(&turns, int64(n/2))
			done.Done()
		}()
	}
	done.Wait()
	expect(int(turns), n/2*2, "turns taken")
}

func spawn(n int) {
	var done sync.WaitGroup
	done.Add(n)
	for i := 0; i < n; i++ {
		go func() { done.Done() }()
	}
	// A wait group that is done once too often panics, and one that is not hangs: the wait is the check.
	done.Wait()
}

func spawnJoin(n int) {
	results, sum := make(chan int), 0
	for i := 0; i < n; i++ {
		i := i
		go func() { results <- i }()
		sum += <-results
	}
	expect(sum, n*(n-1)/2, "sum of the results")
}

func skynetNode(out chan<- int, number, size int) {
	if size == 1 {
		out <- number
		return
	}
	children, sum := make(chan int), 0
	for i := 0; i < 10; i++ {
		go skynetNode(children, number+i*(size/10), size/10)
	}
	for i := 0; i < 10; i++ {
		sum += <-children
	}
	out <- sum
}

// A tree of goroutines, ten children each, that adds up the numbers of its leaves.
func skynet(leaves int) int {
	out := make(chan int)
	go skynetNode(out, 0, leaves)
	return <-out
}

func contend(n int) {
	var lock sync.Mutex
	var done sync.WaitGroup
	count := 0
	for k := 0; k < 4; k++ {
		done.Add(1)
		go func() {
			for i := 0; i < n/4; i++ {
				lock.Lock()
				count++
				lock.Unlock()
			}
			done.Done()
		}()
	}
	done.Wait()
	expect(count, n/4*4, "times the lock was held")
}

func timers(n int) {
	var done sync.WaitGroup
	var early int64
	done.Add(n)
	for i := 0; i < n; i++ {
		milliseconds := 1 + i%1000
		duration := time.Duration(milliseconds) * time.Millisecond
		go func() {
			defer done.Done()
			// One in sixteen looks at the clock, which costs as much as some of what is measured.
			if milliseconds&15 != 0 {
				time.Sleep(duration)
				return
			}
			start := time.Now()
			time.Sleep(duration)
			if time.Since(start) < duration {
				atomic.AddInt64(&early, 1)
			}
		}()
	}
	done.Wait()
	expect(int(early), 0, "sleepers that woke too early")
}
