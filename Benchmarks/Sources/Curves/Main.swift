import CProbe
import Harness

// Prints `coroutine/<series>@<live coroutines> <TAB> best <TAB> median`: what an operation costs beside 10 to 1,000,000
// coroutines that live. Processor time: all of it happens on one queue and nothing waits, so it says the same as the
// clock on the wall and repeats better. Benchmarks/run makes the table and the plot of it.

@main
struct Curves {
  static func main() throws {
    let options = Options.parse()
    var suite = Suite(options)
    let sizes = options.isQuick ? [10, 1_000] : [10, 100, 1_000, 10_000, 100_000, 1_000_000]
    addBeside(sizes, to: &suite)
    addTogether(sizes, to: &suite)
    addMemory(sizes.filter { $0 >= 1_000 }, to: &suite)
    try Runner(options).run(suite, heading: Machine.description + "\n" + String(cString: cprobe_report()))
  }
}
