"""A DICOM node with HTTP: films in, detections out, in the program of a hospital."""
