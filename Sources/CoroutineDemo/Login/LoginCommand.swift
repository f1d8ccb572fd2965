#if Demo
import ArgumentParser
import Foundation

extension Misbehaviour.Fault: ExpressibleByArgument {}

/// `CoroutineDemo login`: arguments, and what they mean.
struct LoginCommand: ParsableCommand {
  enum Style: String, CaseIterable, ExpressibleByArgument {
    case coroutine
    case callbacks
  }

  static let configuration = CommandConfiguration(
    commandName: "login",
    abstract: "Log in, fetch the profile, download the avatar, apply an effect, show it.",
    discussion: """
      Each step is a real HTTP request or real work on pixels. Without --site, a server is started on a free port of \
      127.0.0.1; its accounts are \(Member.all.map { "\($0.account.account)/\($0.account.password)" }.joined(separator: ", ")). \
      Progress goes to standard error, the result to standard output: as pictures on a terminal, as text elsewhere. \
      NO_COLOR, COLORTERM and TERM are honoured.

      EXIT CODES
        0    all went well
        11   the login failed, also for a wrong password
        12   the profile could not be fetched
        13   the avatar could not be downloaded
        14   the effect could not be applied
        15   the result could not be shown
        64   a bad argument
        69   the site cannot be reached
        70   a mistake in this program
        71   the built-in server could not be started
        124  --timeout was not enough
        130  interrupted by Ctrl-C (143: by SIGTERM)
      """
  )

  @Option(help: "Another site to log in to, http or https.", transform: SiteAddress.parse)
  var site: URL?

  @Option(help: "Who logs in.")
  var account = Member.all[0].account.account

  @Option(help: "The account's password. (default: the right one, for the built-in server's accounts)")
  var password: String?

  @Option(name: .customLong("fail-at"), help: "A step that the built-in server makes fail.")
  var failAt: Misbehaviour.Fault?

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("How long the built-in server waits before each answer.", valueName: "milliseconds")
  )
  var latency = 0

  @Option(
    parsing: .unconditional,
    help: ArgumentHelp("How long all of it may take.", valueName: "seconds")
  )
  var timeout = 30.0

  @Option(help: "How the program is written inside: the same job both ways, to compare.")
  var style = Style.coroutine

  func validate() throws {
    guard (0...3_600_000).contains(latency) else {
      throw ValidationError("--latency is a number of milliseconds from 0 to 3600000, not \(latency)")
    }
    guard timeout > 0, timeout <= 86_400 else {
      throw ValidationError("--timeout is a number of seconds above 0 and up to 86400, not \(timeout)")
    }
    if site != nil && (failAt != nil || latency > 0) {
      throw ValidationError("--fail-at and --latency are for the built-in server; they cannot be used with --site")
    }
  }

  func run() throws {
    if let status = LoginRun(self).run() { throw ExitCode(status.code) }
  }

  /// The password given, or else the one that the built-in server expects.
  var credentials: Account {
    let known = site == nil ? Member.named(account)?.account.password : nil
    return Account(account: account, password: password ?? known ?? "")
  }
}
#endif
