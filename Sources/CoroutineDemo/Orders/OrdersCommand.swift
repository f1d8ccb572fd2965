#if Demo
import ArgumentParser

/// `CoroutineDemo orders`: arguments, and what they mean.
struct OrdersCommand: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "orders",
    abstract: "Take orders while workers are killed at random, and prove that each has one effect.",
    discussion: """
      An order, its mail and its booking are one transaction in PostgreSQL. Worker processes send the mails, book, and \
      one of them at a time holds the lease of the nightly report. While orders come in, workers are killed and \
      started again. In the end every order must have one mail and one booking. Progress goes to standard error, the \
      proof to standard output. Ctrl-C, or SIGTERM, ends it: no server and no worker is left.

      Without --database, a server is started in a folder below /tmp, which is removed afterwards. In a given database \
      the tables go into a schema of their own, which is dropped afterwards; only the schema work, for leases, stays.

      EXIT CODES
        0    every order has one mail and one booking
        40   an effect is missing or there twice, or two workers held a lease at once
        64   a bad argument
        69   the given database cannot be used
        70   a mistake in this program
        71   no server could be started
        74   the result could not be written
        124  mails or bookings were not done within a minute after the last order
        130  interrupted by Ctrl-C (143: by SIGTERM)
      """
  )

  @Option(parsing: .unconditional, help: ArgumentHelp("How many orders come in.", valueName: "number"))
  var orders = OrdersPlan().orders

  @Option(parsing: .unconditional, help: ArgumentHelp("How many of them a second, at most.", valueName: "number"))
  var rate = OrdersPlan().rate

  @Option(parsing: .unconditional, help: ArgumentHelp("How many worker processes there are.", valueName: "number"))
  var workers = OrdersPlan().workers

  @Option(parsing: .unconditional, help: ArgumentHelp("How often a worker is killed.", valueName: "number"))
  var kills = OrdersPlan().kills

  @Option(help: ArgumentHelp("A database: postgresql://user@host/name, or as libpq reads it.", valueName: "address"))
  var database: String?

  func validate() throws {
    guard (1...1_000_000).contains(orders) else {
      throw ValidationError("--orders is a number from 1 to 1000000, not \(orders)")
    }
    guard (1...100_000).contains(rate) else {
      throw ValidationError("--rate is a number from 1 to 100000, not \(rate)")
    }
    guard (1...16).contains(workers) else {
      throw ValidationError("--workers is a number from 1 to 16, not \(workers)")
    }
    guard (0...orders).contains(kills) else {
      throw ValidationError("--kills is a number from 0 to that of the orders, not \(kills)")
    }
  }

  func run() throws { OrdersRun(self).run() }

  var plan: OrdersPlan { OrdersPlan(orders: orders, rate: rate, workers: workers, kills: kills) }
}

/// `CoroutineDemo orders-worker`: only `orders` starts it.
struct OrdersWorkerCommand: ParsableCommand {
  static let configuration = CommandConfiguration(
    commandName: "orders-worker",
    abstract: "A worker of the command orders, until its standard input ends.",
    shouldDisplay: false
  )

  @Option var database: String
  @Option var schema: String
  @Option var number: Int

  func run() throws { OrdersWorkerRun(self).run() }
}
#endif
