import CProbe
import Harness

// Prints `coroutine/<workload> <TAB> best <TAB> median` for every row. A new row is three lines in the file of its
// group: its name and how many operations, the work, and what the work must have produced.

@main
struct Workloads {
  static func main() throws {
    let options = Options.parse()
    var suite = Suite(options)
    addSwitching(to: &suite)
    addJobs(to: &suite)
    addSkynet(to: &suite)
    addSettled(to: &suite)
    addPromises(to: &suite)
    addGenerators(to: &suite)
    addHops(to: &suite)
    addAsync(to: &suite)
    addChannels(to: &suite)
    addTimers(to: &suite)
    addLocks(to: &suite)
    addActors(to: &suite)
    addLatency(to: &suite)
    addParked(to: &suite)
    addExcursions(to: &suite)
    try Runner(options).run(suite, heading: Machine.description + "\n" + String(cString: cprobe_report()))
  }
}
