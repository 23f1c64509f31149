"""The words the demo world is made of; every list is invented for it.

A concept has two phrases: the first is how a paper speaks of itself, the second how others speak of it. Nicknames and
what a paper is known for are used by others only: they are what a public profile can know and an abstract cannot.
"""

from __future__ import annotations


def _concepts(table: str) -> tuple[tuple[str, str], ...]:
    rows = [line.split("|") for line in table.strip().splitlines()]
    return tuple((own.strip(), others.strip()) for own, others in rows)


DOMAINS = _concepts("""
    glacier monitoring | shrinking ice sheets
    coral reef surveys | underwater habitats
    railway timetabling | train networks
    hospital triage | emergency wards
    greenhouse farming | indoor crops
    bridge inspection | ageing civil structures
    speech in noisy rooms | far-field microphones
    parliamentary debates | political transcripts
    court rulings | legal documents
    satellite imagery | pictures taken from orbit
    protein design | engineered biomolecules
    battery ageing | degrading energy cells
    wildfire spread | burning landscapes
    bird song archives | avian recordings
    street traffic | urban vehicles
    warehouse robots | automated storage
    school essays | pupils' writing
    ancient inscriptions | carved historical texts
    ocean currents | marine circulation
    wind turbines | rotor farms
    online marketplaces | electronic shops
    insurance claims | policy payouts
    kidney scans | renal imaging
    sign language video | manual communication
    recipe collections | cooking instructions
    telescope surveys | observations of the night sky
    semiconductor plants | chip manufacturing
    news wires | press agencies
    chess endgames | board game positions
    sleep recordings | overnight physiology
    dairy herds | cattle health
    water pipes | leaking mains
    drone fleets | unmanned aircraft
    software repositories | source code histories
    airport queues | passenger flows
    museum catalogues | cultural collections
    seismic stations | earthquake sensors
    gene expression | transcriptome profiles
    power grids | electricity transmission
    call centres | customer support lines
    soil chemistry | ground samples
    orchestra scores | symbolic music
    patent filings | inventors' claims
    crowd sourcing | volunteer annotators
    ship routing | cargo vessels
    medical dictation | spoken clinical notes
    low-resource languages | tongues with few speakers
    household energy | domestic consumption
    mountain weather | alpine forecasts
    micro-lending | small credit
""")

TASKS = _concepts("""
    anomaly detection | spotting unusual events
    event forecasting | predicting what comes next
    entity linking | resolving mentions to a registry
    dense retrieval | finding relevant records by meaning
    text summarisation | condensing long reports
    change-point detection | noticing when behaviour shifts
    image segmentation | outlining regions of a picture
    record deduplication | merging copies of one object
    question answering | replying to users' questions
    causal effect estimation | telling cause from coincidence
    route planning | choosing a path under constraints
    speaker diarisation | deciding who spoke when
    missing value imputation | filling gaps in tables
    object tracking | following things over time
    topic discovery | uncovering latent themes
    syntactic parsing | recovering sentence structure
    resource allocation | sharing scarce capacity
    uncertainty calibration | trustworthy error bars
    link prediction | guessing absent relations
    few-shot classification | learning categories from little data
    active learning | asking annotators the right things
    density estimation | modelling how data are spread
    machine translation | carrying text between languages
    sound event detection | hearing when something happens
    time series clustering | grouping similar curves
    dialogue management | steering a conversation
    fault diagnosis | locating what broke
    image registration | aligning two views
    demand forecasting | estimating future orders
    plagiarism detection | catching copied passages
    pose estimation | locating joints and limbs
    argument mining | extracting claims and premises
    ranking fairness | equal exposure in lists
    federated training | learning without pooling data
    program repair | fixing defects automatically
    keyphrase extraction | picking the salient terms
    optical flow | motion between frames
    schema matching | mapping columns across databases
    reward learning | inferring what people want
    novelty detection | recognising the never seen
""")

APPROACHES = _concepts("""
    sparse graph attention | message passing between neighbours
    contrastive pretraining | pulling matched pairs together
    variational inference | approximate posteriors
    evolutionary search | populations of candidates
    tensor factorisation | low-rank decompositions
    masked modelling | reconstructing hidden pieces
    curriculum sampling | easy examples first
    optimal transport | moving mass at least cost
    kernel mixtures | sums of similarity functions
    recurrent state spaces | linear dynamical layers
    tree ensembles | boosted decision stumps
    diffusion processes | gradual denoising
    submodular selection | diminishing-returns subsets
    mirror descent | geometry-aware updates
    hyperbolic embeddings | curved representation spaces
    knowledge distillation | small students of large teachers
    random projections | sketching in few dimensions
    Bayesian optimisation | surrogate-guided trials
    adversarial training | worst-case perturbations
    locality hashing | buckets of near neighbours
    symbolic constraints | hard logical rules
    wavelet features | multi-scale coefficients
    mixture routing | experts chosen by a gate
    monotone splines | smooth order-preserving curves
    particle filtering | weighted trajectories
    dual encoders | two towers sharing one space
    integer programming | exact combinatorial solvers
    prototype memory | stored exemplars
    spectral clustering | eigenvectors of a similarity matrix
    causal masking | blocking the future
    stochastic quantisation | rounding with noise
    neural rendering | learned light transport
    energy models | unnormalised scores
    self-training | labels from its own guesses
    conformal sets | guaranteed coverage
    gradient matching | imitating update directions
    policy gradients | trial-and-error control
    equivariant layers | symmetry built in
    retrieval augmentation | looking facts up on the fly
    copula models | separating margins from dependence
""")

DATA = (
    "hourly logs", "annotated photographs", "expert interviews", "sensor streams", "scanned archives",
    "simulated episodes", "paired documents", "crowd judgements", "depth maps", "weekly reports", "audio clips",
    "transaction tables", "field notes", "public registers", "laboratory assays", "click traces", "radar sweeps",
    "questionnaires",
)  # fmt: skip

FINDINGS = (
    "reduces the error of the strongest baseline by {n} percent",
    "needs {n} times fewer parameters than the strongest baseline",
    "keeps its accuracy when {n} percent of the inputs are removed",
    "runs {n} times faster on ordinary hardware",
    "improves the average rank on {n} benchmarks",
    "matches a much larger system on {n} of our test beds",
    "closes {n} percent of the gap to human experts",
)

KNOWN_FOR = (
    "staying calibrated under heavy noise", "needing only a handful of labels", "running on a telephone",
    "being reproducible to the last digit", "its brutally honest error analysis", "surviving sensor failure",
    "never looking at personal data", "working across seven alphabets", "its cheap training recipe",
    "scaling to billions of rows", "explaining every decision in plain words", "handling events out of order",
    "its carefully cleaned benchmark", "tolerating wrong annotations", "updating itself overnight",
    "beating human readers", "its tight worst-case bound", "being a drop-in replacement", "working without a clock",
    "ignoring seasonal effects", "its memory of rare cases", "resisting deliberate attacks", "needing no tuning at all",
    "its interactive maps", "transferring between continents", "being trained on a single machine",
    "discovering its own vocabulary", "coping with abrupt regime changes", "answering within a millisecond",
    "its long-running public leaderboard", "merging contradictory sources", "its elegant proof of convergence",
    "refusing to answer when unsure", "working in complete darkness", "its two-stage cascade", "forgetting on request",
    "treating minorities fairly", "compressing a year into a page", "its unusually large user study",
    "recovering from power cuts", "learning from mistakes of its users", "its frugal use of bandwidth",
    "sharing weights across tasks", "being verified formally", "handling blurred and tilted input",
    "spotting forgeries", "its colour-coded diagnostics", "balancing speed against care",
)  # fmt: skip

NICK_ADJECTIVES = (
    "paper", "silent", "velvet", "crooked", "golden", "hollow", "patient", "wandering", "frozen", "copper", "twin",
    "sleepy", "glass", "upside-down", "thirsty", "northern", "broken", "borrowed", "midnight", "wooden", "stubborn",
    "invisible", "barefoot", "rusty", "lucky", "singing", "folded", "restless", "crimson", "narrow", "polite", "salted",
    "drifting", "marble", "hungry", "quiet", "tangled", "silver", "dusty", "floating",
)  # fmt: skip

NICK_NOUNS = (
    "lantern", "elevator", "harbour", "octopus", "staircase", "umbrella", "orchard", "compass", "violin", "bakery",
    "lighthouse", "carousel", "teapot", "pendulum", "beehive", "ladder", "typewriter", "waterfall", "accordion",
    "chimney", "hourglass", "ferry", "scarecrow", "tunnel", "kite", "anchor", "mirror", "windmill", "suitcase",
    "telescope", "mosaic", "barometer", "drawbridge", "snowplough", "labyrinth", "pineapple", "gardener", "postman",
    "tightrope", "whistle",
)  # fmt: skip

VENUES = (
    "Annals of Measured Inference", "Conference on Careful Learning", "Journal of Applied Foresight",
    "Symposium on Sensing and Sense", "Workshop on Useful Machines", "Transactions on Evidence and Retrieval",
    "Meeting on Language at Work", "Letters on Data in the Field", "Conference on Dependable Models",
    "Archive of Quantitative Practice",
)  # fmt: skip

ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
VOWELS = ("a", "e", "i", "o", "u", "ai", "eo", "ia")
CODAS = ("", "", "l", "n", "r", "s", "x", "m", "nd", "th")
GIVEN_NAMES = (
    "Adira", "Benno", "Calla", "Dorian", "Elske", "Fenno", "Gisla", "Hale", "Ivo", "Jora", "Kestrel", "Liora", "Marek",
    "Nadja", "Orla", "Pavo", "Quill", "Runa", "Soren", "Tamsin", "Ulla", "Veit", "Wren", "Yara", "Zoltan",
)  # fmt: skip
