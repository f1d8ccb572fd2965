import CMallocCount
import CProbe
import Harness

// Counts the allocations of each operation exactly and holds them against the numbers in Thresholds/allocations.tsv:
// more is a regression, fewer a number that should be lowered so that nobody slips back unseen. Both end with code 1.
//
//   allocations --thresholds FILE [--update]

@main
struct Allocations {
  static func main() throws {
    let arguments = Array(CommandLine.arguments.dropFirst())
    guard arguments.count >= 2, arguments[0] == "--thresholds", arguments.dropFirst(2).allSatisfy({ $0 == "--update" })
    else {
      complain("error: use: allocations --thresholds FILE [--update]")
      end(2)
    }
    print("# \(String(cString: cprobe_report()).split(separator: "\n").joined(separator: "\n# "))")
    checkThatCountingWorks()

    var counts = Counts()
    try countWaiting(into: &counts)
    try countChannels(into: &counts)
    try countLocks(into: &counts)
    try countActors(into: &counts)
    try countAsync(into: &counts)
    try countLaunching(into: &counts)
    try countPromises(into: &counts)
    try countStepping(into: &counts)

    let thresholds = Thresholds(path: arguments[1])
    if arguments.count > 2 {
      thresholds.write(counts)
    } else if !thresholds.hold(counts) {
      end(1)
    }
  }

  /// A gate at zero that counts nothing would hold for ever.
  private static func checkThatCountingWorks() {
    let before = cmalloc_count()
    blackHole([UInt8](repeating: 1, count: 100))
    expect(cmalloc_count() > before, "an array's allocation is counted")
  }
}
