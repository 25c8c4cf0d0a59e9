# make demo, make test, make lint: each sets up what it needs in .venv.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# TORCH=cpu installs PyTorch's CPU build, for machines without an NVIDIA card: 1 GB instead of 6.
CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: demo docs test test-matrix test-tools lint fuzz faults results licences audit coverage clean
.DEFAULT_GOAL := test

# 24 films, DICOM and PNG, two of them broken on purpose; the knees in all others, and all that
# kneematch can tell about them. Then two methods with a template, against the truth.
demo: $(READY)
	$(BIN)/kneematch synth -n 14 -o demo/films/dicom --force
	$(BIN)/kneematch synth -n 8 -o demo/films/png --format png --seed 14 --force
	head -c 20000 demo/films/dicom/phantom-00000.dcm > demo/films/dicom/cut-short.dcm
	echo "not a picture" > demo/films/png/not-a-picture.png
	$(BIN)/kneematch detect demo/films -o demo/model --force --overlays --crops \
		--export coco --export dicom || [ $$? = 1 ]
	$(BIN)/kneematch evaluate demo/films/dicom -o demo/evaluation --force \
		--template demo/films/dicom/template.json --truth demo/films/dicom/truth.csv || [ $$? = 1 ]
	@echo "Look at demo/model/report.html, and at the pictures in demo/model/overlays."

# One thread a worker: two workers with torch's own threads would be in each other's way.
test: lint test-tools
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# The wheel in new environments (extras, oldest and newest versions, every Python on the path), and the commands
# of most pages. Takes six minutes or more, and some gigabytes of disk for a while. An installation may take long.
test-matrix: $(READY) test-tools
	OMP_NUM_THREADS=1 $(BIN)/pytest -m matrix -n 2 --dist loadgroup -o faulthandler_timeout=1800

# The hooks of .pre-commit-config.yaml: style, types, no films and no large files.
lint: $(READY)
	$(BIN)/pre-commit run --all-files

# The site, in site/. Strict: a warning or a dead link is an error. The notebook is run.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Spoilt files of every kind, for some minutes; what is found is stored in fuzz-findings.
MINUTES ?= 5
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python lab/fuzz.py --minutes $(MINUTES)

# A run whose system calls fail one after the other; needs a C compiler.
faults: $(READY)
	$(BIN)/python lab/faults.py

# Every figure of README and docs that two cores can measure: some hours. PARTS=time for one part, PARTS=large
# on a machine with a GPU and 16 cores. REAL: a folder of real films; OLD: a checkout of an earlier version.
results: $(READY)
	$(BIN)/python lab/results.py $(PARTS) $(if $(REAL),--real $(REAL)) $(if $(OLD),--old $(OLD))

# Which lines and branches the tests run, without those of a full disk, which is full for the
# measurement, too. Worker processes are killed when their work is done, and so not counted.
coverage: $(READY) test-tools
	$(BIN)/pip install --quiet pytest-cov
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -k "not full_disk" --cov --cov-report=term-missing:skip-covered

# The pinned versions against the database of known vulnerabilities; needs the internet. Strict:
# without it, an audit that reached no database says that nothing was found.
audit: $(READY)
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# The tables of docs/licences.md, from the metadata of what is installed.
licences: $(READY)
	sed -i '/^<!-- make licences/q' docs/licences.md
	$(BIN)/python scripts/licences.py >> docs/licences.md

clean:
	rm -rf .venv demo dist site .cache .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is not Python 3.11 or later; install it, or name it: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(if $(filter cpu,$(TORCH)),$(BIN)/pip install --quiet -c constraints.txt torch --index-url $(CPU_INDEX))
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test,web,serve,ray,onnx,docs]'
	@touch $@

# Programs that some tests run: a browser for the web pages, dciodvfy (dicom3tools) and dcmtk's
# tools for DICOM objects, Orthanc for the node. Without them those tests are skipped, with the reason.
TOOLS := chromium dicom3tools dcmtk orthanc orthanc-dicomweb
test-tools:
	@if PATH=$$PATH:/usr/sbin which chromium dciodvfy dsrdump Orthanc >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(TOOLS); \
	else \
	  echo "make: for all tests, as root: apt-get install $(TOOLS)" >&2; \
	fi
