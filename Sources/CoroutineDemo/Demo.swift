#if Demo
import ArgumentParser
import Foundation

/// What a newcomer runs: each subcommand does one real job with coroutines, in a folder of its own.
@main
struct Demo: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "CoroutineDemo",
    abstract: "Real jobs done with coroutines.",
    discussion: "Each subcommand does one job; its own --help says what it needs and what its exit codes mean.",
    subcommands: [
      FeedsCommand.self, ItemsCommand.self, LoginCommand.self, SequencesCommand.self, ChatCommand.self,
      ChatLoadCommand.self, OrdersCommand.self, OrdersWorkerCommand.self,
    ]
  )

  /// Begins before any argument is read, since these settings are the whole process's.
  static func main() {
    // A reader that goes away (`| head -1`) is then a failed write with a sentence, instead of a silent death that
    // skips the cleanup.
    signal(SIGPIPE, SIG_IGN)
    Interrupts.unblock()
    // A thousand connections at once are more than the usual soft limit.
    DescriptorLimit.raise()
    self.main(nil)
  }
}
#else
import Foundation

/// What is built without the packages that the demo needs: one sentence that says how to get it.
@main
enum Demo {
  static func main() {
    let sentence =
      "This CoroutineDemo was built without its parts: run `make demo`, or build with `swift build --traits Demo`.\n"
    FileHandle.standardError.write(Data(sentence.utf8))
    exit(64)
  }
}
#endif
