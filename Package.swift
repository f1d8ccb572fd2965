// swift-tools-version:6.3
import Foundation
import PackageDescription

// Five environment variables and five traits change what this manifest says. All are off unless asked for, so that a
// package which depends on the product Coroutine builds only Coroutine and the C below it, and fetches no other
// package.
//   CO_WERROR   set: warnings are errors, in C, C++ and Swift. For this repository's own checks: a warning that a later
//               compiler invents must not break those who depend on the package.
//   CO_DOCS     set: the documentation plugin becomes a dependency. It is fetched only when documentation is asked for.
//   CO_SHARED_BOOST   set: Boost.Context is linked as a shared library, also where its archive is installed.
//   CO_TESTS    set: of the test targets, only those that it names, with commas. For a build with traits that no other
//               needs.
//   CO_SKIP_TESTS   set: all test targets but those that it names.
//   trait Demo  builds the demo for real: an HTTP server, a command-line parser, SQLite, libpng and histograms, used by
//               it and its tests alone. It enables the trait Postgres.
//   trait HTTP  builds CoroutineHTTP for real: HTTP/1.1 and TLS over CoroutineNet, with llhttp, OpenSSL and
//               swift-http-types.
//   trait NIO   builds CoroutineNIO for real: coroutines on SwiftNIO's event loops.
//   trait Logging   builds CoroutineLogging for real: the calling coroutine in the metadata of swift-log.
//   trait Metrics   builds CoroutineMetrics for real: the runtime's counters for swift-metrics.
//   trait ServiceLifecycle   builds CoroutineServiceLifecycle for real: coroutines as services of
//               swift-service-lifecycle.
//   trait Postgres   builds CoroutinePostgres and CoroutineWork for real: PostgreSQL over libpq, which must be
//               installed, and durable work on it.
let warningsAreErrors = Context.environment["CO_WERROR"] != nil
let wantsDocumentation = Context.environment["CO_DOCS"] != nil

// Boost.Context's archive where there is one, as Debian's -dev package has it: a program then starts on a machine
// without Boost. Asked of the file system, because a linker that finds both takes the shared library. Only the switch
// itself is taken from the archive, two functions in position-independent assembly, so shared libraries may contain it
// as well.
let libraryFolders = [
  "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib",
]
let hasBoostArchive =
  Context.environment["CO_SHARED_BOOST"] == nil
  && libraryFolders.contains { FileManager.default.fileExists(atPath: "\($0)/libboost_context.a") }
let boostContext = hasBoostArchive ? ":libboost_context.a" : "boost_context"

// C whose frames lie on the stacks of coroutines. _GNU_SOURCE is defined in this manifest alone: a source file that
// defines it too would redefine the macro, which is a warning; the C++ compiler predefines it on Linux.
//
// No frame of ours reaches the size of the narrowest guard, 16 KiB, or has a size that is known only when it runs, so
// none can jump over a guard. Probes (-fstack-clash-protection) would need unsafeFlags, which no dependency may have.
let coreSettings: [CSetting] =
  [
    .enableWarning("all"), .enableWarning("extra"), .enableWarning("frame-larger-than=12288"), .enableWarning("vla"),
    .enableWarning("alloca"),
  ] + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : [])
let coreSettingsOfCxx: [CXXSetting] =
  [
    .enableWarning("all"), .enableWarning("extra"), .enableWarning("frame-larger-than=12288"), .enableWarning("vla"),
    .enableWarning("alloca"),
  ] + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : [])

let demoOnly = TargetDependencyCondition.when(traits: ["Demo"])

// The HTTP server with the sockets below it, the command line, the database, the histogram of latencies.
let demoPackages: [Target.Dependency] = [
  .product(name: "FlyingFox", package: "FlyingFox", condition: demoOnly),
  .product(name: "FlyingSocks", package: "FlyingFox", condition: demoOnly),
  .product(name: "ArgumentParser", package: "swift-argument-parser", condition: demoOnly),
  .product(name: "GRDB", package: "GRDB.swift", condition: demoOnly),
  .product(name: "Histogram", package: "hdrhistogram-swift", condition: demoOnly),
]

// What CoroutineNIO stands on.
let nioOnly = TargetDependencyCondition.when(traits: ["NIO"])
let nioPackages: [Target.Dependency] = [
  .product(name: "NIOCore", package: "swift-nio", condition: nioOnly),
  .product(name: "NIOPosix", package: "swift-nio", condition: nioOnly),
  .product(name: "NIOConcurrencyHelpers", package: "swift-nio", condition: nioOnly),
]

// What CoroutineHTTP stands on. Debian 12 has llhttp as source, which CLLHTTP compiles; elsewhere it is a library.
let httpOnly = TargetDependencyCondition.when(traits: ["HTTP"])
let httpTypes = Target.Dependency.product(name: "HTTPTypes", package: "swift-http-types", condition: httpOnly)
let hasLLHTTPSource = FileManager.default.fileExists(atPath: "/usr/share/llhttp/llhttp.c")

let logging = Target.Dependency.product(
  name: "Logging",
  package: "swift-log",
  condition: .when(traits: ["Logging"])
)
let metricsOnly = TargetDependencyCondition.when(traits: ["Metrics"])
let metrics = Target.Dependency.product(name: "CoreMetrics", package: "swift-metrics", condition: metricsOnly)
let lifecycleOnly = TargetDependencyCondition.when(traits: ["ServiceLifecycle"])
let lifecycle = Target.Dependency.product(
  name: "ServiceLifecycle",
  package: "swift-service-lifecycle",
  condition: lifecycleOnly
)

// libpq.
let postgresOnly: [Target.Dependency] = [
  .target(name: "CPostgres", condition: .when(traits: ["Postgres"]))
]
let postgresProducts: [Target.Dependency] = [
  .target(name: "CoroutinePostgres", condition: .when(traits: ["Postgres"])),
  .target(name: "CoroutineWork", condition: .when(traits: ["Postgres"])),
]

let coreTestDependencies: [Target.Dependency] = [
  "Coroutine", "CoroutineNet", "CoroutineTesting", "CCoroutine", "CCoroutineRuntime", "CCoroutineInspect", "CLinux",
  "CTestSupport", "CExceptions",
  // Programs that tests start.
  "CountedWaits", "NoDescriptors", "BlockedSignals", "Forks", "StackZoo",
]

let package = Package(
  name: "coroutine",
  products: [
    .library(name: "Coroutine", targets: ["Coroutine"]),
    .library(name: "CoroutineNet", targets: ["CoroutineNet"]),
    .library(name: "CoroutineTesting", targets: ["CoroutineTesting"]),
    .library(name: "CoroutineHTTP", targets: ["CoroutineHTTP"]),
    .library(name: "CoroutineNIO", targets: ["CoroutineNIO"]),
    .library(name: "CoroutineLogging", targets: ["CoroutineLogging"]),
    .library(name: "CoroutineMetrics", targets: ["CoroutineMetrics"]),
    .library(name: "CoroutineServiceLifecycle", targets: ["CoroutineServiceLifecycle"]),
    .library(name: "CoroutinePostgres", targets: ["CoroutinePostgres"]),
    .library(name: "CoroutineWork", targets: ["CoroutineWork"]),
  ],
  traits: [
    .trait(
      name: "Demo",
      description: "Builds CoroutineDemo and its tests, which need other packages, libpng, SQLite and libpq.",
      enabledTraits: ["Postgres"]
    ),
    .trait(
      name: "HTTP",
      description: "Builds CoroutineHTTP and its tests, which need llhttp, OpenSSL and swift-http-types."
    ),
    .trait(name: "NIO", description: "Builds CoroutineNIO and its tests, which need SwiftNIO."),
    .trait(name: "Logging", description: "Builds CoroutineLogging and its tests, which need swift-log."),
    .trait(name: "Metrics", description: "Builds CoroutineMetrics and its tests, which need swift-metrics."),
    .trait(
      name: "ServiceLifecycle",
      description: "Builds CoroutineServiceLifecycle and its tests, which need swift-service-lifecycle."
    ),
    .trait(name: "Postgres", description: "Builds CoroutinePostgres and its tests, which need libpq and PostgreSQL."),
    .default(enabledTraits: []),
  ],
  dependencies: [
    .package(url: "https://github.com/swhitty/FlyingFox", .upToNextMinor(from: "0.27.1")),
    .package(url: "https://github.com/apple/swift-argument-parser", from: "1.8.2"),
    .package(url: "https://github.com/groue/GRDB.swift", from: "7.10.0"),
    .package(url: "https://github.com/HdrHistogram/hdrhistogram-swift", .upToNextMinor(from: "0.2.0")),
    .package(url: "https://github.com/apple/swift-http-types", from: "1.8.0"),
    .package(url: "https://github.com/apple/swift-nio", from: "2.101.0"),
    .package(url: "https://github.com/apple/swift-log", from: "1.16.0"),
    .package(url: "https://github.com/apple/swift-metrics", from: "2.13.0"),
    .package(url: "https://github.com/swift-server/swift-service-lifecycle", from: "2.13.0"),
  ],
  targets: [
    .target(
      name: "CCoroutine",
      cSettings: [.headerSearchPath("."), .define("_GNU_SOURCE")] + coreSettings,
      cxxSettings: [.headerSearchPath(".")] + coreSettingsOfCxx,
      linkerSettings: [.linkedLibrary(boostContext, .when(platforms: [.linux]))]
    ),
    // The two above the core read its internal headers; nothing else may.
    .target(
      name: "CCoroutineRuntime",
      dependencies: ["CCoroutine"],
      cSettings: [.headerSearchPath("."), .headerSearchPath("../CCoroutine"), .define("_GNU_SOURCE")] + coreSettings
    ),
    .target(
      name: "CCoroutineInspect",
      dependencies: ["CCoroutineRuntime", "CCoroutine"],
      // A part of Debug.c.
      exclude: ["coroutine_gdb.py"],
      cSettings: [.headerSearchPath("."), .headerSearchPath("../CCoroutine"), .define("_GNU_SOURCE")] + coreSettings
    ),
    .target(
      name: "CLinux",
      // For its debug builds' check of spin locks alone.
      dependencies: ["CCoroutineRuntime", "CCoroutine"],
      cSettings: [.define("_GNU_SOURCE")] + coreSettings
    ),
    .target(name: "Coroutine", dependencies: ["CCoroutine", "CCoroutineRuntime", "CCoroutineInspect", "CLinux"]),
    .target(name: "CoroutineNet", dependencies: ["Coroutine", "CLinux"]),
    .target(
      name: "CAsyncWorlds",
      cSettings: [.define("_GNU_SOURCE"), .enableWarning("all"), .enableWarning("extra")]
        + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : [])
    ),
    .target(name: "CoroutineTesting", dependencies: ["CAsyncWorlds", "Coroutine", "CoroutineNet", "CLinux"]),
    // Without `package` access: a loop of anybody else can be written outside, as CoroutineNIO is.
    .target(name: "CoroutineNIO", dependencies: ["Coroutine"] + nioPackages, packageAccess: false),
    .target(name: "CoroutineLogging", dependencies: ["Coroutine", logging]),
    .target(name: "CoroutineMetrics", dependencies: ["Coroutine", metrics] + postgresProducts),
    .target(name: "CoroutineServiceLifecycle", dependencies: ["Coroutine", lifecycle]),
    .systemLibrary(name: "CPostgres"),
    .target(name: "CoroutinePostgres", dependencies: ["Coroutine", "CoroutineNet"] + postgresOnly),
    .target(name: "CoroutineWork", dependencies: ["CoroutinePostgres", "Coroutine"]),
    // Empty without the trait: neither header is asked for.
    .target(
      name: "CLLHTTP",
      cSettings: [
        .headerSearchPath("."), .define("_GNU_SOURCE"), .define("CO_HTTP", .when(traits: ["HTTP"])),
        .enableWarning("all"), .enableWarning("extra"),
      ] + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : []),
      linkerSettings: hasLLHTTPSource ? [] : [.linkedLibrary("llhttp", .when(traits: ["HTTP"]))]
    ),
    .target(
      name: "COpenSSL",
      cSettings: [
        .define("_GNU_SOURCE"), .define("CO_HTTP", .when(traits: ["HTTP"])),
        .enableWarning("all"), .enableWarning("extra"),
      ] + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : []),
      linkerSettings: [
        .linkedLibrary("ssl", .when(traits: ["HTTP"])), .linkedLibrary("crypto", .when(traits: ["HTTP"])),
      ]
    ),
    .target(
      name: "CoroutineHTTP",
      dependencies: [
        "Coroutine", "CoroutineNet", .target(name: "CLLHTTP", condition: httpOnly),
        .target(name: "COpenSSL", condition: httpOnly), httpTypes,
      ]
    ),
    .systemLibrary(name: "CPNG"),
    .systemLibrary(name: "CZlib"),
    .executableTarget(
      name: "CoroutineDemo",
      dependencies: [
        "Coroutine", "CoroutineNet", .target(name: "CoroutinePostgres", condition: demoOnly),
        .target(name: "CoroutineWork", condition: demoOnly), .target(name: "CPNG", condition: demoOnly),
        .target(name: "CZlib", condition: demoOnly),
      ] + demoPackages,
      exclude: ["Chat/README.md", "Feeds/README.md", "Login/README.md", "Orders/README.md"],
      resources: [.copy("Feeds/Samples")]
    ),
    .target(name: "CTestSupport", dependencies: ["CCoroutineRuntime", "CCoroutine"], path: "Tests/CTestSupport"),
    .target(
      name: "CExceptions",
      path: "Tests/CExceptions",
      cxxSettings: [.enableWarning("all"), .enableWarning("extra")]
        + (warningsAreErrors ? [.treatAllWarnings(as: .error)] : [])
    ),
    // Programs that tests start.
    .executableTarget(name: "BlockedSignals", dependencies: ["Coroutine"], path: "Tests/BlockedSignals"),
    .executableTarget(name: "CountedWaits", dependencies: ["Coroutine", "CoroutineNet"], path: "Tests/CountedWaits"),
    .executableTarget(
      name: "Forks",
      dependencies: ["CoroutineNet", "Coroutine", "CCoroutine", "CTestSupport"],
      path: "Tests/Forks"
    ),
    .executableTarget(name: "Inherited", dependencies: ["CoroutineNet", "Coroutine"], path: "Tests/Inherited"),
    .executableTarget(name: "NoDescriptors", dependencies: ["Coroutine"], path: "Tests/NoDescriptors"),
    .executableTarget(name: "StackZoo", dependencies: ["Coroutine"], path: "Tests/StackZoo"),
    // The tests of the three targets in C.
    .testTarget(
      name: "CCoroutineTests",
      dependencies: ["CCoroutine", "CCoroutineRuntime", "CCoroutineInspect", "CTestSupport", "CExceptions"]
    ),
    .testTarget(
      name: "CoroutineNetTests",
      dependencies: ["CoroutineNet", "CoroutineTesting", "Coroutine", "CCoroutine", "CTestSupport", "Inherited"]
    ),
    // Two halves, so that an optimised build compiles them beside each other. The second one's folder Support has links
    // to the first one's files.
    .testTarget(name: "CoroutineTests", dependencies: coreTestDependencies, exclude: ["ComingFrom", "Snippets"]),
    // Code of pages, which one build compiles. What it needs of the folder Support are links in its own.
    .testTarget(
      name: "CoroutineSnippetTests",
      dependencies: coreTestDependencies,
      path: "Tests/CoroutineTests",
      exclude: ["Actor", "Channel", "Generator", "Lock", "Promise", "Select", "Structure", "Support"],
      sources: ["ComingFrom", "Snippets"]
    ),
    .testTarget(name: "CoroutineKernelTests", dependencies: coreTestDependencies),
    .testTarget(name: "CoroutineTestingTests", dependencies: ["CoroutineTesting", "CoroutineNet", "Coroutine"]),
    // Compiles files of the library once more, by links to them in its folder Shipped, with atomics of its own.
    // Optimised always: they compute for a minute otherwise, on one thread, and need no debugger.
    .testTarget(
      name: "CoroutineInterleavingTests",
      dependencies: ["Coroutine", "CCoroutine", "CCoroutineRuntime", "CLinux"],
      swiftSettings: [.unsafeFlags(["-O"], .when(configuration: .debug))]
    ),
    .testTarget(
      name: "CoroutineStressTests",
      dependencies: ["CoroutineNet", "Coroutine", "CCoroutine", "CTestSupport"]
    ),
    .testTarget(
      name: "CoroutineDemoTests",
      dependencies: [
        "CoroutineDemo", "CoroutineNet", "CoroutineTesting", "Coroutine",
        .target(name: "CoroutinePostgres", condition: demoOnly), .target(name: "CoroutineWork", condition: demoOnly),
      ] + demoPackages
    ),
    .testTarget(
      name: "CoroutineNIOTests",
      dependencies: [
        "CoroutineNIO", "Coroutine", "CTestSupport",
        .product(name: "NIOEmbedded", package: "swift-nio", condition: nioOnly),
      ] + nioPackages
    ),
    .testTarget(
      name: "CoroutineHTTPTests",
      dependencies: [
        "CoroutineHTTP", "CoroutineNet", "CoroutineTesting", "Coroutine", .target(name: "CLLHTTP", condition: httpOnly),
        httpTypes,
      ]
    ),
    .testTarget(name: "CoroutineLoggingTests", dependencies: ["CoroutineLogging", "Coroutine", logging]),
    .testTarget(
      name: "CoroutineMetricsTests",
      dependencies: [
        "CoroutineMetrics", "Coroutine", metrics,
        .product(name: "MetricsTestKit", package: "swift-metrics", condition: metricsOnly),
      ]
    ),
    .testTarget(
      name: "CoroutineServiceLifecycleTests",
      dependencies: [
        "CoroutineServiceLifecycle", "CoroutineNIO", "CoroutineNet", "Coroutine", lifecycle,
        .product(name: "ServiceLifecycleTestKit", package: "swift-service-lifecycle", condition: lifecycleOnly),
        .product(name: "UnixSignals", package: "swift-service-lifecycle", condition: lifecycleOnly),
        .product(name: "Logging", package: "swift-log", condition: lifecycleOnly),
      ] + nioPackages
    ),
    .testTarget(name: "CoroutinePostgresTests", dependencies: ["CoroutinePostgres", "CoroutineNet", "Coroutine"]),
    // A program that tests kill.
    .executableTarget(
      name: "QueueWorker",
      dependencies: ["CoroutineWork", "CoroutinePostgres", "Coroutine"],
      path: "Tests/QueueWorker"
    ),
    .testTarget(
      name: "CoroutineWorkTests",
      dependencies: [
        "CoroutineWork", "CoroutinePostgres", "Coroutine", "CoroutineTesting", "QueueWorker",
        .target(name: "CoroutineMetrics", condition: metricsOnly),
        .product(name: "MetricsTestKit", package: "swift-metrics", condition: metricsOnly),
      ]
    ),
  ],
  swiftLanguageModes: [.v6],
  cxxLanguageStandard: .cxx17
)

for target in package.targets where [.regular, .executable, .test].contains(target.type) {
  // Compiled with other atomics, a file's `public import Synchronization` may be more than it needs.
  let areErrors = warningsAreErrors && target.name != "CoroutineInterleavingTests"
  target.swiftSettings =
    (target.swiftSettings ?? []) + [
      .enableUpcomingFeature("ExistentialAny"),
      .enableUpcomingFeature("InternalImportsByDefault"),
      .enableUpcomingFeature("MemberImportVisibility"),
      .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
    ] + (areErrors ? [.treatAllWarnings(as: .error)] : [])
}

if let only = Context.environment["CO_TESTS"] {
  let names = only.split(separator: ",").map(String.init)
  package.targets.removeAll { $0.type == .test && !names.contains($0.name) }
}
if let skipped = Context.environment["CO_SKIP_TESTS"] {
  let names = skipped.split(separator: ",").map(String.init)
  package.targets.removeAll { $0.type == .test && names.contains($0.name) }
}

if wantsDocumentation {
  package.dependencies.append(
    .package(url: "https://github.com/swiftlang/swift-docc-plugin", from: "1.5.0")
  )
}
